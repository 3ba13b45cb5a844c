"""The registry of data sets: adding one is one file in `harness.datasets.known`."""

import importlib
import pkgutil
from pathlib import Path

from harness.base.errors import UserError, unknown
from harness.datasets import known, userfile
from harness.datasets.dataset import Dataset, DatasetInfo

FILE = "file"
"""The name of a user's own file among the data sets."""


def names() -> tuple[str, ...]:
    """Return the names of the data sets that the harness knows, in alphabetical order."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(known.__path__)))


def dataset(name: str) -> Dataset:
    """Return the entry called `name`, or the one for a user's own file.

    Raises:
        UserError: there is none; the message names the nearest.
    """
    if name == FILE:
        return userfile.DATASET
    if name not in names():
        raise unknown("DATASET", name, names())
    entry: Dataset = importlib.import_module(f"{known.__name__}.{name}").DATASET
    assert entry.info.name == name, f"harness/datasets/known/{name}.py has the data set {entry.info.name}"
    return entry


def info(name: str) -> DatasetInfo:
    """Return the facts of data set `name`; of a user's ``file`` the shape is only known once it is read.

    Raises:
        UserError: there is no such set; the message names the nearest.
    """
    return dataset(name).info


def choose(name: str | None, data_file: str | None) -> str:
    """Return the data set's name from what the user gave: a set's name or a file of the user's own.

    Raises:
        UserError: neither or both are given, the set is unknown, the file is missing or of an unknown kind.
    """
    if name is not None and data_file is not None:
        raise UserError(f"both DATASET={name} and --data {data_file} are given: give one of them")
    if data_file is not None:
        return _choose_file(Path(data_file))
    if name is None:
        raise UserError(f"no data set given: add DATASET= one of {', '.join(names())}, or --data FILE")
    return dataset(name).info.name if name != FILE else _no_file()


def _choose_file(path: Path) -> str:
    if path.suffix.lower() not in userfile.SUFFIXES:
        raise UserError(f"--data {path} is of an unknown kind: use {', '.join(userfile.SUFFIXES)}")
    if not path.is_file():
        raise UserError(f"--data {path} is not there: check the path")
    return FILE


def _no_file() -> str:
    raise UserError("DATASET=file names no file: give it with --data FILE")
