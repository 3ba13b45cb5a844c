"""``harness data``: list, fetch, verify, prepare and describe data sets, and clean their cache."""

import sys
import time

import click

from harness import datasets
from harness.base.command_context import Context
from harness.base.current_user import expanded
from harness.base.errors import UserError
from harness.base.files import cache_folder, discard
from harness.cli.answer_output import print_table
from harness.cli.common_options import context_options, defaulted, with_options
from harness.cli.first_use import transfer_bars
from harness.cli.terminal import echo
from harness.datasets.data_checks import verify_data as check_data
from harness.datasets.dataset import Download
from harness.datasets.downloads import fetch as fetch_originals
from harness.datasets.own_file import own_path, own_suffix
from harness.datasets.prepare import prepared_folder
from harness.schema.workload import DATA_KINDS, Workload

# The cache's folders, and what they hold.
_CACHED = {
    "prepared": "prepared data",
    "images": "indexes of images and synthetic JPEGs",
    "sha256": "hashes of files",
    "data": "downloads",
}


of_set = with_options(click.argument("dataset", metavar="NAME"), context_options("data_dir"))


@click.group(name="data")
def data_command() -> None:
    """List, fetch, verify and prepare data sets, tell of one, and clean their cache.

    NAME is a data set's name, or for `verify`, `prepare` and `info` also a file of your own: .csv, .tsv, .parquet, .npz
    or .h5.
    """


@data_command.command(name="list")
@context_options("data_dir")
def list_command(context: Context) -> None:
    """Show every data set and what of it is here."""
    folder = datasets.data_folder(context.data_dir)
    rows = []
    for name in datasets.dataset_names():
        facts = datasets.dataset_info(name)
        originals = facts.find(folder)
        files = {*originals.train, *originals.test}
        here = "no"
        if not originals.missing:
            here = f"{len(files)} files" if len(files) > 1 else files.pop().name
        counts = (
            f"{facts.train_rows:,}",
            f"{facts.test_rows:,}",
            "x".join(map(str, facts.features)),
            str(facts.classes),
        )
        rows.append((name, *counts, facts.default_model, here))
    echo(f"data in {folder}")
    print_table(("name", "train rows", "test rows", "features", "classes", "model", "here"), rows)
    echo(
        "Where a set is not here, the first sweep fetches a small one, else synthetic data is used; the "
        "originals: `harness data fetch NAME`."
    )


@data_command.command(name="fetch")
@of_set
@click.option("--mirror", help="Address of a folder that has the files, instead of the published one.")
def fetch_command(dataset: str, context: Context, mirror: str | None) -> None:
    """Download the original files of NAME, checked by hash; a broken download continues where it stopped."""
    datasets.dataset_info(dataset)
    with transfer_bars() as progress:
        files = fetch_originals(dataset, context.data_dir or cache_folder() / "data", mirror, progress)
    for path in files:
        echo(f"{path}  {path.stat().st_size:,} bytes")


@data_command.command(name="verify")
@of_set
def verify_command(dataset: str, context: Context) -> None:
    """Read the real data of NAME and compare rows, classes and ranges with what is published."""
    source = datasets.locate(_workload(dataset, "real"), context.data_dir)
    prepared = datasets.prepare(source)
    checks = check_data(source, prepared)
    for check in checks:
        mark = {True: "ok", False: "WRONG", None: "-"}[check.agrees]
        echo(f"{mark:<6} {check.what}: {check.measured}" + (f"  ({check.expected})" if check.expected else ""))
    if prepared.record.note:
        echo(f"note: {prepared.record.note}")
    wrong = [check.what for check in checks if check.agrees is False]
    if wrong:
        raise UserError(f"the data of {dataset} is not as published in {', '.join(wrong)}: fetch it again")


@data_command.command(name="prepare")
@of_set
@defaulted("--data-kind", type=click.Choice(DATA_KINDS), metavar="|".join(DATA_KINDS), default="auto")
@click.option("--samples", type=click.IntRange(min=1), help="Training samples of synthetic data.")
def prepare_command(dataset: str, context: Context, data_kind: str, samples: int | None) -> None:
    """Write the memory-mapped cache of NAME, which every rank opens.

    ImageNet's images stay where they are: each is decoded once, and what cannot be is named.
    """
    source = datasets.locate(_workload(dataset, data_kind, samples), context.data_dir)
    was_prepared = prepared_folder(source).exists()
    begin = time.perf_counter()
    prepared = datasets.prepare(source)
    seconds = time.perf_counter() - begin
    record = prepared.record
    sentences = datasets.own_file_lines(record) or (record.note,)
    for line in filter(None, sentences):
        echo(line)
    size = sum(path.stat().st_size for path in prepared.folder.iterdir())
    rows = f"{record.train_rows:,} + {record.test_rows:,} rows, {size / 1e6:,.1f} MB"
    state = "was prepared before" if was_prepared else f"prepared in {seconds:.2f} s"
    echo(f"{dataset} ({record.kind}) {state}: {rows} in {prepared.folder}")


@data_command.command(name="info")
@of_set
def info_command(dataset: str, context: Context) -> None:
    """Show everything known about NAME."""
    workload = _workload(dataset, "auto")
    facts = datasets.dataset_info(workload.dataset)
    source = datasets.locate(workload, context.data_dir)
    lines: dict[str, object] = {"name": facts.name, "title": facts.title, "source": facts.source}
    if facts.train_rows:
        lines |= {"train rows": f"{facts.train_rows:,}", "test rows": f"{facts.test_rows:,}"}
        lines |= {"features": "x".join(map(str, facts.features)), "stored as": facts.dtype, "classes": facts.classes}
        lines |= {"test part": "own files" if facts.separate_test else "the last rows of the one file"}
    if facts.stand_in:
        lines |= {"synthetic data": f"{facts.stand_in.rows:,} rows unless --samples says otherwise"}
    lines |= {"standardised by": facts.standardise, "default model": facts.default_model}
    lines |= {"original": "\n".join(_address(file) for file in facts.downloads)}
    lines |= {"files here": "\n".join(map(str, source.files)), "used": source.kind, "note": source.note}
    folder = prepared_folder(source)
    lines |= {"data id": source.data_id, "prepared": f"yes, in {folder}" if folder.exists() else "not yet"}
    for key, value in lines.items():
        for number, part in enumerate(str(value).splitlines()):
            echo(f"{key if number == 0 else '':<16} {part}")


@data_command.command(name="clean")
@click.option("--downloads", is_flag=True, help="Also remove the original files that `harness data fetch` brought.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def clean_command(downloads: bool, yes: bool) -> None:
    """Empty the cache of what is made again when it is needed; nothing may be training."""
    parts = {part: what for part, what in _CACHED.items() if part != "data" or downloads}
    for part, what in parts.items():
        echo(f"to be removed: {what}, {cache_folder() / part}")
    if sys.stdin.isatty() and not yes:
        click.confirm("Remove them?", abort=True)
    for part, what in parts.items():
        echo(f"{discard(part) / 1e6:>10,.1f} MB  {what}, {cache_folder() / part}")


def _workload(name: str, kind: str, samples: int | None = None) -> Workload:
    """Return a workload of data set `name`, or of the user's file called so, for `locate`."""
    path = own_path(expanded(name))
    is_file = name not in datasets.dataset_names() and bool(own_suffix(path))
    dataset = datasets.choose_dataset(None, str(path)) if is_file else datasets.choose_dataset(name, None)
    return Workload(
        dataset=dataset,
        model=datasets.dataset_info(dataset).default_model,
        batch_per_rank=1,
        data=kind,
        samples=samples,
        data_file=str(path) if is_file else None,
    )


def _address(file: Download) -> str:
    size = f"{file.bytes:,} bytes" if file.bytes else "size not published"
    return f"{file.url}  {size}  {f'sha256 {file.sha256}' if file.sha256 else 'hash pinned on first use'}"
