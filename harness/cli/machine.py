"""Commands about this machine: its readiness, its site file, the cost of messages, and the alternatives' speed."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.cores import usable_cores
from harness.base.errors import RunError, unknown
from harness.base.hostlock import HostLock
from harness.base.processes import interruptible
from harness.cli.common import answering, data_dir_option, defaulted, folder_options, print_table, reports_option
from harness.report.answer import Answer, document
from harness.schema.claim import EXPERIMENTS

if TYPE_CHECKING:
    from harness.bench.blocks import BenchSettings

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command(name="doctor")
@data_dir_option
@answering
def doctor(data_dir: Path | None) -> Answer:
    """Show which MPI, TensorFlow, cores, memory, compiler and GPUs are in use, and what is wrong with them.

    The exit code is 0 when everything that runs need works, else 1.
    """
    from harness.doctor import PROBLEM, all_checks

    checks = []
    with interruptible():
        for check in all_checks(data_dir):
            checks.append(check)
            status = click.style(f"{check.status:8}", fg=_COLOURS[check.status])
            fix = f"\n{'':23} fix: {check.fix}" if check.fix else ""
            click.echo(f"{status} {check.topic:14} {check.found}{fix}")
    bad = [check.topic for check in checks if check.status == PROBLEM]
    sentence = f"Runs will fail: {', '.join(bad)}." if bad else "Everything that runs need works."
    return Answer(sentence=sentence, data={"checks": checks}, code=1 if bad else 0)


@click.group(name="site")
def site() -> None:
    """List the known computing centres, or check one against the live system."""


@site.command(name="list")
def list_sites() -> None:
    """Name the site files that travel with the harness."""
    from harness.sweep.site import known_sites, read_site

    for name, path in known_sites().items():
        site = read_site(path)
        click.echo(f"{name:16} {site.scheduler:6} {site.note}")


@site.command(name="check")
@click.argument("site", metavar="NAME", required=False)
def check_site(**options: str | None) -> None:
    """Compare the site file NAME (or a path, or the one of this machine) with what the scheduler says."""
    from harness.sweep.schedulers import check_site as check
    from harness.sweep.site import find_site

    findings = tuple(check(find_site(options["site"])))
    for finding in findings:
        click.echo(f"{'ok   ' if finding.good else 'WRONG'} {finding.text}")
    wrong = sum(not finding.good for finding in findings)
    if wrong:
        raise RunError(f"{wrong} statements of the site file are not true: correct the file")


@click.command(name="bench")
@click.option("--workloads", default="", help="Some of the seven, such as mnist-dnn,mnist-cnn [default: all].")
@click.option("--contenders", default="", help="Some contenders, such as bare,raw-sums,gradients [default: all].")
@click.option("--horovod-python", metavar="PATH", help="A Python that has Horovod, with its mpirun beside it.")
@click.option("--torch-python", metavar="PATH", help="A Python that has PyTorch, for DDP.")
@click.option("--blocks", type=int, help="Starts of all contenders [default: what 15 minutes hold, at least 3].")
@click.option("--rows", type=int, help="Training rows over all ranks, instead of each workload's own number.")
@click.option("--quick", is_flag=True, help="Two networks in 3 minutes: shows that it works; judges nothing.")
@click.option("--decoding", is_flag=True, help="Measure only how fast JPEGs are decoded, beside bare tf.data.")
@click.option("--force", is_flag=True, help="Measure on a busy machine too; the page says so.")
@defaulted("--limit", "limit_s", type=int, default=180, help="Seconds that others wait for one.")
@defaulted("--seed", type=int, default=0, help="Seed of the order of turns and of the weights.")
@reports_option
@answering
def bench(
    workloads: str,
    contenders: str,
    horovod_python: str | None,
    torch_python: str | None,
    decoding: bool,
    reports: Path,
    **options: Any,
) -> Answer:
    """Measure the harness beside a bare loop, Keras fit, MultiWorkerMirroredStrategy and other alternatives.

    Every contender trains the same networks on the same synthetic rows, one core per rank, in turns of tenths of a
    second. All of it takes about 15 minutes, in which the machine should do nothing else.
    """
    if decoding:
        from harness.bench.contenders.decoding import measure_decoding

        return Answer(sentence=measure_decoding(threads=usable_cores(), rounds=options["blocks"] or 3))
    from harness.bench.blocks import BenchSettings

    pythons = {"horovod": horovod_python, "ddp": torch_python}
    settings = BenchSettings(
        workloads=_names(workloads),
        contenders=_names(contenders),
        pythons={name: path for name, path in pythons.items() if path},
        **options,
    )
    answer = write_bench(settings, reports)
    click.echo(f"\n{document(answer)}")
    return answer


def write_bench(settings: "BenchSettings", reports: Path, place: str = "bench") -> Answer:
    """Run the bench and write ``REPORTS/<place>`` after every block; return what it says at the end."""
    from harness.bench.blocks import run_bench
    from harness.report.bench_page import bench_answer
    from harness.report.publish import write_page

    with interruptible(), HostLock().held(f"a bench in '{Path.cwd()}'", click.echo) as handles:
        for record in run_bench(settings, click.echo, handles):
            answer = write_page(replace(bench_answer(record), place=place), reports)
    return answer


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


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
@defaulted("--budget", "budget_s", type=float, default=8.0, help="Seconds of a launch; beyond them 6 samples suffice.")
@defaulted(
    "--limit",
    "limit_s",
    type=float,
    default=180.0,
    help="Seconds that a launch may take; a block of several that many times.",
)
@click.option("--force", is_flag=True, help="Measure on a busy machine or on too few cores too; the record says so.")
@folder_options
@answering
def probe(
    mca: tuple[str, ...],
    algorithms: bool,
    workloads: tuple[str, ...],
    results: Path,
    reports: Path,
    **options: Any,
) -> Answer:
    """Measure what messages between ranks cost: latency, bandwidth, and the allreduce of the papers' networks.

    The last line is the path of the page; the numbers are in results/probes. `harness sweep --tuned` uses them.
    """
    from harness.probe.probe_store import write_probe
    from harness.probe.probing import ProbeSettings, algorithm_settings, parse_settings, run_probe
    from harness.report.probe_page import best_settings, probe_answer, settings_table

    for name in workloads:
        if name not in EXPERIMENTS:
            raise unknown("WORKLOAD", name, EXPERIMENTS)
    settings = (algorithm_settings() if algorithms else ()) + parse_settings(mca)
    with interruptible():
        found = run_probe(ProbeSettings(settings=settings, **options), click.echo)
    folder = write_probe(found, results)
    best = best_settings(found.probe, workloads or tuple(EXPERIMENTS))
    if best:
        print_table(settings_table(best).headings, settings_table(best).rows)
    return probe_answer(found.probe, folder, best)
