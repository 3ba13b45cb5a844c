"""``harness doctor``: which MPI, TensorFlow, cores, compiler and GPUs are here, and what is wrong with them."""

from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.exit_codes import FAILED
from harness.base.processes import interruptible
from harness.cli.answer_output import answering, print_table
from harness.cli.common_options import NumberRange, context_options, defaulted, mpi_option, refuse_given
from harness.cli.terminal import echo
from harness.report.answer import Answer

if TYPE_CHECKING:
    from harness.doctor.all_checks import Diagnostic


@click.command(name="doctor")
@context_options("data_dir", "results")
@answering
@mpi_option
@click.option("--cluster", is_flag=True, help="Check two nodes of a cluster by a job of a few minutes.")
@click.option("--site", help="With --cluster: facts of the computing centre, as of a sweep.")
@defaulted("--limit", type=NumberRange(min=0), default=30.0, help="With --cluster: minutes to wait for the job.")
def doctor_command(context: Context, cluster: bool, site: str | None, limit: float) -> Answer:
    """Show which MPI, TensorFlow, cores, memory, compiler and GPUs are in use, and what is wrong with them.

    With --cluster a job of two nodes makes the checks on each of them, and sums over both with the MPI library and the
    launcher of a sweep; inside an allocation it is made there. Ctrl-C cancels the job.

    The exit code is 0 when everything that runs need works, else 1.
    """
    if cluster:
        return _check_cluster(context, site, limit * 60)
    refuse_given("without --cluster nothing is submitted", "site", "limit", "results")
    from harness.doctor.all_checks import all_checks

    checks = []
    with interruptible():
        for check in all_checks(context.data_dir):
            checks.append(check)
            fix = f"\n{'':23} fix: {check.fix}" if check.fix else ""
            echo(f"{check.status:8} {check.topic:14} {check.finding}{fix}")
    lines = []
    for check in checks:
        lines.append(_as_data(check))
    sentence, code = _sum_up(checks)
    return Answer(sentence=sentence, data={"checks": lines}, code=code)


def _check_cluster(context: Context, site: str | None, limit_s: float) -> Answer:
    """Print the table of two nodes: check, node, state, what was found, what to do."""
    from harness.doctor.cluster_check import check_cluster
    from harness.sweep.site import find_site

    with interruptible():
        node_checks = check_cluster(find_site(site), context.results, limit_s=limit_s, say=context.say)
    rows = []
    lines = []
    for node_check in node_checks:
        check = node_check.check
        rows.append((check.topic, node_check.node, check.status, check.finding, check.fix))
        lines.append({"node": node_check.node} | _as_data(check))
    print_table(("check", "node", "state", "found", "what to do"), rows)
    sentence, code = _sum_up([node_check.check for node_check in node_checks])
    return Answer(sentence=sentence, data={"checks": lines}, code=code)


def _as_data(check: "Diagnostic") -> dict[str, str]:
    return {"status": check.status, "topic": check.topic, "found": check.finding, "fix": check.fix}


def _sum_up(checks: "list[Diagnostic]") -> tuple[str, int]:
    """Return the sentence for all checks, and the exit code."""
    from harness.doctor.all_checks import PROBLEM

    bad = dict.fromkeys(check.topic for check in checks if check.status == PROBLEM)
    if bad:
        return f"Runs will fail: {', '.join(bad)}.", FAILED
    return "Everything that runs need works.", 0
