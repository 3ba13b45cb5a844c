"""Data sets: the papers' seven, a user's own file, and synthetic stand-ins for absent ones.

In: the name of a data set or a user's file, and a folder of originals.
Out: rows as arrays in the cache, shards of them by rank, a fingerprint.
Never: takes a synthetic row for a real one without a word, or changes an original.
"""

from harness.datasets.data_source import DataSource, data_folder, locate
from harness.datasets.dataset import Dataset
from harness.datasets.known import choose_dataset, dataset_info, dataset_names
from harness.datasets.own_file import FILE, own_file_lines
from harness.datasets.prepare import Prepared, prepare

__all__ = [
    "FILE",
    "DataSource",
    "Dataset",
    "Prepared",
    "choose_dataset",
    "data_folder",
    "dataset_info",
    "locate",
    "dataset_names",
    "own_file_lines",
    "prepare",
]
