"""A small data set's original files are brought here by the first command that needs them, where nobody forbids it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError
from harness.base.files import cache_folder
from harness.base.setting_names import setting
from harness.cli.terminal import echo
from harness.schema.workload import Workload

if TYPE_CHECKING:
    from harness.datasets.downloads import ShowFile

SWITCH = "HARNESS_FETCH"
"""The variable that forbids it: ``HARNESS_FETCH=0``."""

_failed: set[Path] = set()  # folders into which this process could not bring a set: it does not try another one


def fetch_for(workload: Workload, data_dir: Path | None) -> None:
    """Fetch what `workload` trains on as `fetch_small_set` does, unless it is a script's own, or declined.

    Raises:
        UserError: as `fetch_small_set`.
    """
    declined = workload.data == "synthetic" or workload.input == "resident"
    if not declined and not workload.script:
        fetch_small_set(workload.dataset, data_dir)


def fetch_small_set(name: str, data_dir: Path | None) -> None:
    """Fetch the files of data set `name` where they are missing and may be fetched unasked.

    It is fetched if the set is small, no folder of originals is named (its content is the user's), and nothing forbids
    it. Batch jobs and ranks never fetch: their node may have no network, and is paid for. Where it fails, one line says
    why and nothing else happens: synthetic data is used.

    Raises:
        UserError: `HARNESS_FETCH` is neither 0 nor 1.
    """
    from harness import datasets
    from harness.sweep.scheduler_answers import in_a_job

    allowed = os.environ.get(SWITCH, "1")
    if allowed not in ("0", "1"):
        raise UserError(f"{SWITCH}={allowed} is neither 1 nor 0: 0 keeps every command from fetching data by itself")
    dataset = datasets.dataset_info(name)
    named = data_dir is not None or os.environ.get("HARNESS_DATA_DIR")
    if allowed == "0" or not dataset.small or named or in_a_job():
        return
    folder = cache_folder() / "data"
    if folder in _failed or not dataset.find(folder).missing:
        return
    echo(
        f"{dataset.title} is not here yet and is fetched once "
        f"({SWITCH}=0 or {setting('data_kind', 'synthetic')}: never)"
    )
    from harness.datasets.downloads import fetch_at_first_use

    try:
        with transfer_bars() as progress:
            fetch_at_first_use(dataset.name, folder, progress)
    except UserError as error:
        _failed.add(folder)
        echo(f"{dataset.title} was not fetched: {error}")


@contextlib.contextmanager
def transfer_bars() -> "Iterator[ShowFile]":
    """Show a bar for each file on standard error; yield what `harness.datasets.downloads.fetch` calls for one."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from harness.datasets.dataset import Download

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:

        def progress(file: Download) -> Callable[[int, int | None], None]:
            task = bar.add_task(file.name, total=file.bytes)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield progress
