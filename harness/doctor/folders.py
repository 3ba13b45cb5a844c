"""The cache, the data folder, and which data sets are there."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.datasets.cache import cache_folder, make_folder
from harness.datasets.registry import dataset, names
from harness.datasets.source import data_folder
from harness.doctor.check import Check, ok, problem, warning
from harness.errors import UserError
from harness.files import user_errors

_GIB = 2**30
_LITTLE_DISK = 2 * _GIB


def check_cache() -> Check:
    """Return the line of the cache folder: it must be writable."""
    folder = cache_folder()
    fix = "set HARNESS_CACHE_DIR to a folder with space that you may write to"
    try:
        make_folder(folder)
        with user_errors("cache folder", folder), tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except UserError as error:
        return problem("cache folder", str(error), fix)
    free = shutil.disk_usage(folder).free
    found = f"{folder}, {free / _GIB:.1f} GiB free"
    return ok("cache folder", found) if free >= _LITTLE_DISK else warning("cache folder", found, fix)


def check_data(data_dir: Path | None) -> Iterator[Check]:
    """Yield the lines of the data folder (`data_dir`, None for the default) and of every data set."""
    try:
        folder = data_folder(data_dir)
    except UserError as error:
        yield problem("data folder", str(error), "give --data-dir, or set HARNESS_DATA_DIR, to a folder that exists")
        return
    yield ok("data folder", str(folder) if folder.is_dir() else f"{folder}, not there yet")
    for name in names():
        yield ok(f"data {name}", _found(name, folder))


def _found(name: str, folder: Path) -> str:
    found = dataset(name).find(folder)
    if found.missing:
        return f"no original files (missing {', '.join(found.missing)}): a synthetic twin stands in"
    if dataset(name).info.separate_test and not found.test:
        return "training files only: test rows are held out of them"
    return "original files"
