"""Data sets: the papers' five, a user's own file, and synthetic twins that stand in for absent ones."""

from harness.datasets.dataset import DatasetInfo
from harness.datasets.prepare import Prepared, prepare
from harness.datasets.registry import choose, info, names
from harness.datasets.source import DataSource, locate

__all__ = ["DatasetInfo", "Prepared", "DataSource", "choose", "info", "locate", "names", "prepare"]
