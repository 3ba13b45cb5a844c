"""``harness bench``: the harness beside its alternatives."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from harness.base.command_context import Context
from harness.base.hostlock import HostLock
from harness.base.processes import interruptible
from harness.cli.answer_output import answering, format_options
from harness.cli.common_options import context_options, mpi_option, names_in
from harness.cli.terminal import echo
from harness.report.answer import Answer, document

if TYPE_CHECKING:
    from harness.bench.bench_runner import BenchSettings


@click.command(name="bench")
@click.option("--workloads", default="", help="Some of the seven, such as mnist-dnn,mnist-cnn [default: all].")
@click.option("--contenders", default="", help="Some contenders, such as bare,gradients [default: all].")
@click.option("--horovod-python", metavar="PATH", help="A Python that has Horovod, with its mpirun beside it.")
@click.option("--torch-python", metavar="PATH", help="A Python that has PyTorch, for DDP.")
@click.option("--blocks", type=int, help="Starts of all contenders [default: what 15 minutes hold, at least 3].")
@click.option("--force", is_flag=True, help="Measure on a busy machine too; the page says so.")
@format_options
@context_options("reports")
@answering
@mpi_option
def bench_command(
    workloads: str,
    contenders: str,
    horovod_python: str | None,
    torch_python: str | None,
    blocks: int | None,
    force: bool,
    context: Context,
) -> Answer:
    """Measure the harness beside a bare loop, Keras fit, MultiWorkerMirroredStrategy and other alternatives.

    Every contender trains the same networks on the same synthetic rows, one core per rank, interleaved in slices of
    50 ms. All of it takes about 20 minutes, in which the machine should do nothing else.
    """
    from harness.bench.bench_runner import BenchSettings

    pythons = {"horovod": horovod_python, "ddp": torch_python}
    settings = BenchSettings(
        workloads=names_in(workloads),
        contenders=names_in(contenders),
        pythons={name: path for name, path in pythons.items() if path},
        blocks=blocks,
        force=force,
    )
    answer = write_bench(settings, context)
    echo(f"\n{document(answer)}")
    return answer


def write_bench(settings: "BenchSettings", context: Context, place: str = "bench") -> Answer:
    """Run the bench and write ``REPORTS/<place>`` after every block; return what it says at the end."""
    from harness.bench.bench_runner import run_bench
    from harness.report.bench_answer import bench_answer
    from harness.report.html_pages import write_page

    with interruptible(), HostLock().held("a bench", context.say) as handles:
        for record in run_bench(settings, context.say, handles):
            answer = write_page(replace(bench_answer(record), place=place), context.reports)
    return answer
