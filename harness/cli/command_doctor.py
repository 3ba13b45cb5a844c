"""``harness doctor``: which MPI, TensorFlow, cores, compiler and GPUs are here, and what is wrong with them."""

import click

from harness.base.command_context import Context
from harness.base.exit_codes import FAILED
from harness.base.processes import interruptible
from harness.cli.answer_output import answering
from harness.cli.common_options import context_options, mpi_option
from harness.cli.terminal import echo
from harness.report.answer import Answer

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(name="doctor")
@context_options("data_dir")
@answering
@mpi_option
def doctor_command(context: Context) -> Answer:
    """Show which MPI, TensorFlow, cores, memory, compiler and GPUs are in use, and what is wrong with them.

    The exit code is 0 when everything that runs need works, else 1.
    """
    from harness.doctor.all_checks import PROBLEM, all_checks

    checks = []
    with interruptible():
        for check in all_checks(context.data_dir):
            checks.append(check)
            status = click.style(f"{check.status:8}", fg=_COLOURS[check.status])
            fix = f"\n{'':23} fix: {check.fix}" if check.fix else ""
            echo(f"{status} {check.topic:14} {check.finding}{fix}")
    bad = [check.topic for check in checks if check.status == PROBLEM]
    sentence = f"Runs will fail: {', '.join(bad)}." if bad else "Everything that runs need works."
    lines = [
        {"status": check.status, "topic": check.topic, "found": check.finding, "fix": check.fix} for check in checks
    ]
    return Answer(sentence=sentence, data={"checks": lines}, code=FAILED if bad else 0)
