"""`harness data`: list, fetch, verify, prepare and describe the data sets."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from harness import datasets
from harness.base.errors import UserError
from harness.base.files import cache_folder, discard
from harness.cli.common import data_dir_option, defaulted, print_table, with_options
from harness.datasets import fetch as originals
from harness.datasets.dataset import Download
from harness.datasets.image_files import write_shards
from harness.datasets.own_file import SUFFIXES
from harness.datasets.prepare import prepared_folder
from harness.schema.workload import DATA_KINDS, IMAGENET, Workload

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
    """List, fetch, verify, prepare and describe the data sets, and clean their cache.

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
        "Where a set is not here, a synthetic stand-in is used; the originals: make data DATASET=NAME ACTION=fetch, "
        "which is `harness data fetch NAME`."
    )


@data.command()
@of_set
@click.option("--mirror", help="Address of a folder that has the files, instead of the published one.")
def fetch(dataset: str, data_dir: Path | None, mirror: str | None) -> None:
    """Download the original files of NAME, checked by hash; a broken download continues where it stopped."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    datasets.info(dataset)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:

        def progress(file: Download) -> Callable[[int, int | None], None]:
            task = bar.add_task(file.name, total=file.bytes)
            return lambda done, total: bar.update(task, completed=done, total=total)

        files = originals.fetch(dataset, data_dir or cache_folder() / "data", mirror, progress)
    for path in files:
        click.echo(f"{path}  {path.stat().st_size:,} bytes")


@data.command()
@of_set
def verify(dataset: str, data_dir: Path | None) -> None:
    """Read the real data of NAME and compare rows, classes and ranges with what is published."""
    source = datasets.locate(_workload(dataset, "real"), data_dir)
    prepared = datasets.prepare(source)
    checks = originals.verify(source, prepared)
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
@click.option("--output", type=click.Path(path_type=Path), help="ImageNet: the folder of the TFRecord files.")
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
    if record.note:
        click.echo(record.note)
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
    own = name not in datasets.names() and Path(name).suffix.lower() in SUFFIXES
    dataset = datasets.choose(None if own else name, name if own else None)
    model, file = datasets.info(dataset).default_model, str(Path(name).resolve()) if own else None
    return Workload(dataset=dataset, model=model, batch_per_rank=1, data=kind, samples=samples, data_file=file)


def _address(file: Download) -> str:
    size = f"{file.bytes:,} bytes" if file.bytes else "size not published"
    return f"{file.url}  {size}  {f'sha256 {file.sha256}' if file.sha256 else 'hash pinned on first use'}"
