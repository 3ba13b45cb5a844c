"""Commands about this machine: its data sets, its readiness, its site file, the cost of messages, the bench."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness import datasets
from harness.base.errors import RunError, UserError, unknown
from harness.base.files import cache_folder, discard
from harness.base.hostlock import HostLock
from harness.base.processes import interruptible
from harness.base.user_path import UserPath, expanded
from harness.cli.common import (
    answering,
    data_dir_option,
    defaulted,
    folder_options,
    names_in,
    print_table,
    reports_option,
    with_options,
)
from harness.cli.first_use import transfer_bars
from harness.datasets.dataset import Download
from harness.datasets.downloads import fetch as fetch_originals
from harness.datasets.image_files import write_shards
from harness.datasets.own_file import SUFFIXES
from harness.datasets.prepare import prepared_folder
from harness.datasets.prepare import verify as check_data
from harness.report.answer import Answer, document
from harness.schema.claim import EXPERIMENTS
from harness.schema.workload import DATA_KINDS, IMAGENET, Workload

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
    from harness.doctor.all_checks import all_checks
    from harness.doctor.diagnostic import PROBLEM

    checks = []
    with interruptible():
        for check in all_checks(data_dir):
            checks.append(check)
            status = click.style(f"{check.status:8}", fg=_COLOURS[check.status])
            fix = f"\n{'':23} fix: {check.fix}" if check.fix else ""
            click.echo(f"{status} {check.topic:14} {check.finding}{fix}")
    bad = [check.topic for check in checks if check.status == PROBLEM]
    sentence = f"Runs will fail: {', '.join(bad)}." if bad else "Everything that runs need works."
    lines = [
        {"status": check.status, "topic": check.topic, "found": check.finding, "fix": check.fix} for check in checks
    ]
    return Answer(sentence=sentence, data={"checks": lines}, code=1 if bad else 0)


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
@click.option("--force", is_flag=True, help="Measure on a busy machine too; the page says so.")
@defaulted("--limit", "limit_s", type=int, default=180, help="Seconds that others wait for one.")
@defaulted("--seed", type=int, default=0, help="Seed of the order of turns and of the weights.")
@reports_option
@answering
def bench(
    workloads: str, contenders: str, horovod_python: str | None, torch_python: str | None, reports: Path, **options: Any
) -> Answer:
    """Measure the harness beside a bare loop, Keras fit, MultiWorkerMirroredStrategy and other alternatives.

    Every contender trains the same networks on the same synthetic rows, one core per rank, in turns of tenths of a
    second. All of it takes about 15 minutes, in which the machine should do nothing else.
    """
    from harness.bench.blocks import BenchSettings

    pythons = {"horovod": horovod_python, "ddp": torch_python}
    settings = BenchSettings(
        workloads=names_in(workloads),
        contenders=names_in(contenders),
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
    mca: tuple[str, ...], algorithms: bool, workloads: tuple[str, ...], results: Path, reports: Path, **options: Any
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


# The cache's folders, and what they hold.
_CACHED = {
    "prepared": "prepared data",
    "images": "indexes of images and synthetic JPEGs",
    "sha256": "hashes of files",
    "data": "downloads",
}


of_set = with_options(click.argument("dataset", metavar="NAME"), data_dir_option)


@click.group()
def data() -> None:
    """List, fetch, verify, prepare and describe data sets, and clean their cache.

    NAME is a data set's name, or for `verify`, `prepare` and `info` also a .csv, .npz or .h5 file of your own.
    """


@data.command("list")
@data_dir_option
def list_sets(data_dir: Path | None) -> None:
    """Show every data set and what of it is here."""
    folder, rows = datasets.data_folder(data_dir), []
    for name in datasets.names():
        facts = datasets.info(name)
        found = facts.find(folder)
        files = {*found.train, *found.test}
        here = "no" if found.missing else f"{len(files)} files" if len(files) > 1 else files.pop().name
        counts = (
            f"{facts.train_rows:,}",
            f"{facts.test_rows:,}",
            "x".join(map(str, facts.features)),
            str(facts.classes),
        )
        rows.append((name, *counts, facts.default_model, here))
    click.echo(f"data in {folder}")
    print_table(("name", "train rows", "test rows", "features", "classes", "model", "here"), rows)
    click.echo(
        "Where a set is not here, the first sweep fetches a small one, else a synthetic stand-in is used; the "
        "originals: make data DATASET=NAME ACTION=fetch, which is `harness data fetch NAME`."
    )


@data.command()
@of_set
@click.option("--mirror", help="Address of a folder that has the files, instead of the published one.")
def fetch(dataset: str, data_dir: Path | None, mirror: str | None) -> None:
    """Download the original files of NAME, checked by hash; a broken download continues where it stopped."""
    datasets.info(dataset)
    with transfer_bars() as progress:
        files = fetch_originals(dataset, data_dir or cache_folder() / "data", mirror, progress)
    for path in files:
        click.echo(f"{path}  {path.stat().st_size:,} bytes")


@data.command()
@of_set
def verify(dataset: str, data_dir: Path | None) -> None:
    """Read the real data of NAME and compare rows, classes and ranges with what is published."""
    source = datasets.locate(_workload(dataset, "real"), data_dir)
    prepared = datasets.prepare(source)
    checks = check_data(source, prepared)
    for check in checks:
        mark = {True: "ok", False: "WRONG", None: "-"}[check.agrees]
        click.echo(f"{mark:<6} {check.what}: {check.found}" + (f"  ({check.expected})" if check.expected else ""))
    if prepared.record.note:
        click.echo(f"note: {prepared.record.note}")
    wrong = [check.what for check in checks if check.agrees is False]
    if wrong:
        raise UserError(f"the data of {dataset} is not as published in {', '.join(wrong)}: fetch it again")


@data.command()
@of_set
@defaulted("--data-kind", type=click.Choice(DATA_KINDS), default="auto")
@click.option("--samples", type=click.IntRange(min=1), help="Training rows of a synthetic stand-in.")
@click.option(
    "--shards", type=click.IntRange(min=1), help="ImageNet: number of TFRecord files to write; needs --output."
)
@click.option("--output", type=UserPath(), help="ImageNet: the folder of the TFRecord files.")
def prepare(
    dataset: str, data_dir: Path | None, data_kind: str, samples: int | None, shards: int | None, output: Path | None
) -> None:
    """Write the memory-mapped cache of NAME, which every rank opens.

    ImageNet's images stay where they are: each is decoded once, and what cannot be is named.
    """
    if shards or output:
        if dataset != IMAGENET or shards is None or output is None:
            raise UserError("--shards N and --output FOLDER are given together, and for imagenet only")
        source = datasets.locate(_workload(dataset, "real"), data_dir)
        train, test = write_shards(source.train, source.test, output, shards)
        click.echo(f"{train:,} + {test:,} images as TFRecord files in {output}: use it as --data-dir")
        return
    source = datasets.locate(_workload(dataset, data_kind, samples), data_dir)
    there = prepared_folder(source).exists()
    begin = time.perf_counter()
    prepared = datasets.prepare(source)
    seconds = time.perf_counter() - begin
    record = prepared.record
    sentences = datasets.own_file_lines(record) or (record.note,)
    for line in filter(None, sentences):
        click.echo(line)
    size = sum(path.stat().st_size for path in prepared.folder.iterdir())
    rows = f"{record.train_rows:,} + {record.test_rows:,} rows, {size / 1e6:,.1f} MB"
    state = "was prepared before" if there else f"prepared in {seconds:.2f} s"
    click.echo(f"{dataset} ({record.kind}) {state}: {rows} in {prepared.folder}")


@data.command()
@of_set
def info(dataset: str, data_dir: Path | None) -> None:
    """Show everything known about NAME."""
    workload = _workload(dataset, "auto")
    facts = datasets.info(workload.dataset)
    source = datasets.locate(workload, data_dir)
    lines: dict[str, Any] = {"name": facts.name, "title": facts.title, "source": facts.source}
    if facts.train_rows:
        lines |= {"train rows": f"{facts.train_rows:,}", "test rows": f"{facts.test_rows:,}"}
        lines |= {"features": "x".join(map(str, facts.features)), "stored as": facts.dtype, "classes": facts.classes}
        lines |= {"test part": "own files" if facts.separate_test else "the last rows of the one file"}
    if facts.stand_in:
        lines |= {"stand-in": f"{facts.stand_in.rows:,} rows unless --samples says otherwise"}
    lines |= {"standardised by": facts.standardise, "default model": facts.default_model}
    lines |= {"original": "\n".join(_address(file) for file in facts.downloads)}
    lines |= {"files here": "\n".join(map(str, source.files)), "used": source.kind, "note": source.note}
    folder = prepared_folder(source)
    lines |= {"data id": source.data_id, "prepared": f"yes, in {folder}" if folder.exists() else "not yet"}
    for key, value in lines.items():
        for number, part in enumerate(str(value).splitlines()):
            click.echo(f"{key if number == 0 else '':<16} {part}")


@data.command()
@click.option("--downloads", is_flag=True, help="Also remove the original files that `harness data fetch` brought.")
def clean(downloads: bool) -> None:
    """Empty the cache of what is made again when it is needed; nothing may be training."""
    for part, what in _CACHED.items():
        if part != "data" or downloads:
            click.echo(f"{discard(part) / 1e6:>10,.1f} MB  {what}, {cache_folder() / part}")


def _workload(name: str, kind: str, samples: int | None = None) -> Workload:
    """Return a workload of data set `name`, or of the user's file called so, for `locate`."""
    path = expanded(name)
    own = name not in datasets.names() and path.suffix.lower() in SUFFIXES
    dataset = datasets.choose(None if own else name, str(path) if own else None)
    model, file = datasets.info(dataset).default_model, str(path.resolve()) if own else None
    return Workload(dataset=dataset, model=model, batch_per_rank=1, data=kind, samples=samples, data_file=file)


def _address(file: Download) -> str:
    size = f"{file.bytes:,} bytes" if file.bytes else "size not published"
    return f"{file.url}  {size}  {f'sha256 {file.sha256}' if file.sha256 else 'hash pinned on first use'}"
