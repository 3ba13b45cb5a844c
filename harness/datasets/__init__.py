"""Data sets: the papers' seven, a user's own file, and synthetic stand-ins for absent ones."""

from harness.datasets.data_source import DataSource, data_folder, locate
from harness.datasets.dataset import Dataset
from harness.datasets.known import choose, info, names
from harness.datasets.prepare import Prepared, prepare

__all__ = ["DataSource", "Dataset", "Prepared", "choose", "data_folder", "info", "locate", "names", "prepare"]
