"""The registry of data sets: whatever is in the `DATASETS` of a module in this folder, and a user's own file."""

import importlib
import pkgutil
from pathlib import Path

from harness.base.errors import UserError, unknown
from harness.base.setting_names import setting
from harness.datasets.dataset import Dataset
from harness.datasets.own_file import FILE, OWN_FILE, SUFFIXES, own_suffix


def registered() -> dict[str, Dataset]:
    """Return all data sets by name."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {dataset.name: dataset for module in modules for dataset in module.DATASETS}


def dataset_names() -> tuple[str, ...]:
    """Return the names of the data sets that the harness knows, in alphabetical order."""
    return tuple(sorted(registered()))


def dataset_info(name: str) -> Dataset:
    """Return data set `name`; of a user's ``file`` the shape is only known once it is read.

    Raises:
        UserError: there is no such set; the message names the nearest.
    """
    if name == FILE:
        return OWN_FILE
    datasets = registered()
    if name not in datasets:
        raise unknown("dataset", name, datasets)
    return datasets[name]


def choose_dataset(name: str | None, data_file: str | None) -> str:
    """Return the data set's name from what the user gave: a set's name or a file of the user's own.

    Raises:
        UserError: neither or both are given, the set is unknown, the file is missing or of an unknown kind.
    """
    if name is not None and data_file is not None:
        raise UserError(f"both {setting('dataset', name)} and {setting('data', data_file)} are given: give one of them")
    if data_file is not None:
        path = Path(data_file)
        if not own_suffix(path):
            raise UserError(f"{setting('data', path)} is of an unknown kind: use {', '.join(SUFFIXES)}")
        if not path.is_file():
            raise UserError(f"{setting('data', path)} is not there: check the path")
        return FILE
    if name is None:
        raise UserError(
            f"no data set given: add {setting('dataset')} one of {', '.join(dataset_names())}, or "
            f"{setting('data', 'FILE')}"
        )
    if name == FILE:
        raise UserError(f"{setting('dataset', 'file')} names no file: give it with {setting('data', 'FILE')}")
    return dataset_info(name).name
