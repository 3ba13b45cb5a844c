"""`DataSet`: what a user's script reads its part of the rows with, by paper B's interface."""

import dataclasses
from typing import Any

import numpy as np

from harness.base.errors import UserError, unknown
from harness.datasets.dataset import Array
from harness.readers.peers import find_peers
from harness.readers.rank_rows import DataSetRequest, load_rank_rows
from harness.readers.row_sources import TEST, TRAIN, VALIDATION


class DataSet:
    """Training, validation and testing rows of a data set, of which this MPI rank has read its own part.

    `training_data` (float32 [rows, *features], divided by `normalize`), `training_labels` (float32
    [rows, classes], or as they are with ``one_hot=False``), `validation_data`, `validation_labels`,
    `testing_data`, `testing_labels`; None where there is no such part. Over all ranks every row is there once.
    """

    def __init__(
        self,
        data_name: str,
        train_batch_size: int | None = None,
        test_batch_size: int | None = None,
        normalize: float = 1.0,
        **more: Any,
    ) -> None:
        """Read MNIST, CIFAR10, CIFAR100, IMAGENET, or ``train_file=`` in format CSV (or a folder), HDF5, NetCDF, npz.

        `more`: validation_file, test_file, valid_pct, test_pct, one_hot, label (a CSV column), data_dir, image_size.

        Raises:
            UserError: an argument is wrong, or a file is missing, damaged or too short.
        """
        fields = [field.name for field in dataclasses.fields(DataSetRequest)]
        for name in more:
            if name not in fields:
                raise unknown("argument of DataSet", name, fields)
        peers = find_peers()
        parts = load_rank_rows(DataSetRequest(name=data_name.lower(), normalize=normalize, **more), peers)
        self.train_batch_size = train_batch_size
        self.test_batch_size = test_batch_size
        none = (None, None)
        arrays: dict[str, tuple[Any, Any]] = {TRAIN: none, VALIDATION: none, TEST: none, **parts}
        self.training_data, self.training_labels = arrays[TRAIN]
        self.validation_data, self.validation_labels = arrays[VALIDATION]
        self.testing_data, self.testing_labels = arrays[TEST]
        self._next = dict.fromkeys(parts, 0)
        self._parts = parts

    def next_train_batch(self) -> tuple[Array, Array]:
        """Return the next `train_batch_size` training rows and their labels, and after the last the first again."""
        return self._take(TRAIN, "train_batch_size", self.train_batch_size)

    def next_validation_batch(self) -> tuple[Array, Array]:
        """Return the next `test_batch_size` validation rows and their labels."""
        return self._take(VALIDATION, "test_batch_size", self.test_batch_size)

    def next_test_batch(self) -> tuple[Array, Array]:
        """Return the next `test_batch_size` testing rows and their labels."""
        return self._take(TEST, "test_batch_size", self.test_batch_size)

    def _take(self, part: str, field: str, size: int | None) -> tuple[Array, Array]:
        if size is None or size < 1:
            raise UserError(f"{field} is {size}: give DataSet a number of rows above 0")
        if part not in self._parts:
            raise UserError(f"there are no {part} rows: give DataSet valid_pct, test_pct or a file for them")
        rank_rows = self._parts[part]
        begin = self._next[part]
        self._next[part] = (begin + size) % len(rank_rows.data)
        rows = np.arange(begin, begin + size) % len(rank_rows.data)
        return rank_rows.data[rows], rank_rows.labels[rows]
