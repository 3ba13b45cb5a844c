"""``harness probe``: what communication costs on this machine."""

from dataclasses import dataclass
from functools import partial

import click

from harness.base.command_context import Context
from harness.base.errors import unknown
from harness.base.processes import interruptible
from harness.cli.answer_output import answering, print_table
from harness.cli.common_options import context_options, defaulted, mpi_option, option_group, refuse_given, take
from harness.report.answer import Answer
from harness.schema.claim import EXPERIMENTS


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeOptions:
    """What the command line of `harness probe` asks for; the options' help says what each is."""

    ranks: int
    launcher: str | None
    mca: tuple[str, ...]
    algorithms: bool
    workloads: tuple[str, ...]
    largest: int
    launches: int
    samples: int
    budget_s: float
    force: bool


@click.command(name="probe")
@defaulted("--ranks", type=int, default=2, help="Ranks on this machine, one per core.")
@click.option("--launcher", help="Start the ranks with this instead, such as 'mpirun -n 4 --host a:2,b:2' or 'srun'.")
@click.option("--mca", multiple=True, metavar="'NAME=VALUE ...'", help="Compare this setting of Open MPI; repeatable.")
@click.option("--algorithms", is_flag=True, help="Compare Open MPI's allreduce algorithms and components.")
@click.option("--workload", "workloads", multiple=True, help="Print the best setting of this one only, as mnist-dnn.")
@defaulted("--largest", type=int, default=64 * 2**20, help="Bytes of the largest message.")
@defaulted(
    "--launches", type=click.IntRange(min=1), default=6, help="Blocks, which have a launch of every setting; 6 or more."
)
@defaulted("--samples", type=click.IntRange(min=6), default=25, help="Samples of every size.")
@defaulted(
    "--budget",
    "budget_s",
    type=float,
    metavar="SECONDS",
    default=8.0,
    help="Seconds of a launch; beyond them 6 samples suffice.",
)
@click.option("--force", is_flag=True, help="Measure on a busy machine or on too few cores too; the record says so.")
@context_options("results", "reports", measures=True)
@option_group("options", partial(take, ProbeOptions))
@answering
@mpi_option
def probe_command(options: ProbeOptions, context: Context) -> Answer:
    """Measure what messages between ranks cost: latency, bandwidth, and the allreduce of the papers' networks.

    The last line is the path of the page; the numbers are in results/probes. `harness sweep --tuned` uses them.
    """
    from harness.probe.probe_runner import ProbeSettings, algorithm_settings, parse_settings, run_probe
    from harness.probe.probe_store import write_probe
    from harness.report.probe_answer import best_settings, probe_answer, settings_table

    for name in options.workloads:
        if name not in EXPERIMENTS:
            raise unknown("workload", name, EXPERIMENTS)
    settings = (algorithm_settings() if options.algorithms else ()) + parse_settings(options.mca)
    if options.launcher:
        refuse_given("--launcher says how many ranks there are", "ranks")
    with interruptible():
        probe_settings = ProbeSettings(
            ranks=options.ranks,
            launcher=options.launcher,
            settings=settings,
            largest=options.largest,
            launches=options.launches,
            samples=options.samples,
            budget_s=options.budget_s,
            force=options.force,
        )
        measured = run_probe(probe_settings, context.say)
    folder = write_probe(measured, context.results)
    best = best_settings(measured.probe, options.workloads or tuple(EXPERIMENTS))
    if best:
        print_table(settings_table(best).headings, settings_table(best).rows)
    return probe_answer(measured.probe, folder, best)
