"""Point: one launch of a workload on a layout, with the key that changes with all that determines it."""

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass

import msgspec

from harness.base.errors import unknown
from harness.base.record_words import TEXT, VALUE, VARIABLE, check_text
from harness.schema.layout import Layout
from harness.schema.message_cost import Algorithm
from harness.schema.workload import Workload

SCALINGS = ("strong", "weak")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One launch of a workload on a layout. `repeat` counts from 0.

    `data_id` fingerprints the data (its kind and the hash of its source). `scaling` is ``strong`` (the same
    rows at every rank count) or ``weak`` (rows in proportion to the ranks). `oversubscribe` permits more
    ranks than cores: for function, never for timing. `settings` are environment variables that tune communication
    (`harness sweep --tuned`), as pairs of name and value. `code` is what would run
    (`harness.schema.code_identity.code_identity`), so that a launch of a different code version is another launch.

    Raises:
        UserError: the scaling is unknown, or a text is of no form that a record has.
    """

    workload: Workload
    layout: Layout
    repeat: int = 0
    scaling: str = "strong"
    data_id: str = ""
    oversubscribe: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    code: str = ""

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise unknown("scaling", self.scaling, SCALINGS)
        check_text("data id", self.data_id, TEXT, optional=True)
        check_text("code", self.code, optional=True)
        check_settings(self.settings)

    @property
    def seed(self) -> int:
        """The seed of initial weights and order: the workload's, else the repeat's number, whatever the layout."""
        return self.repeat if self.workload.seed is None else self.workload.seed

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits that change with everything that determines the launch."""
        return _key(self)

    @property
    def folder(self) -> str:
        """The name of the launch's folder: layout, repeat and key, readable and unique."""
        layout = self.layout
        uneven = f"-{layout.ranks}ranks" if layout.last_node else ""
        return f"n{layout.nodes}x{layout.ranks_per_node}x{layout.threads}{uneven}-r{self.repeat}-{self.key}"


def check_settings(settings: Iterable[tuple[str, str]]) -> None:
    """Check that `settings` tune communication and do nothing else: ranks have them in their environment.

    Raises:
        UserError: one is another variable, or has a value that none of these takes.
    """
    for name, value in settings:
        check_text("setting", name, VARIABLE)
        check_text(f"setting {name}", value, VALUE)
        if name == "HARNESS_REDUCTION" and value not in set(Algorithm):
            raise unknown(name, value, Algorithm)


def digest(value: object) -> str:
    """Return twelve hexadecimal digits of the SHA-256 of `value`'s canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(_counting(value))).hexdigest()[:12]


_key = functools.lru_cache(maxsize=16_384)(digest)


def _counting(value: object) -> object:
    """Return `value` as lists and dictionaries, in an order of their own, without what does not count."""
    if isinstance(value, Workload):
        return _counting_settings(value)
    return _counting_parts(value)


@functools.lru_cache(maxsize=16)  # all points of a sweep have the same
def _counting_settings(workload: Workload) -> object:
    return _counting_parts(workload)


def _counting_parts(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _counting(getattr(value, f.name)) for f in fields(value) if f.compare}
    if isinstance(value, dict):
        return {name: _counting(value[name]) for name in sorted(value)}
    if isinstance(value, (tuple, list)):
        return [_counting(part) for part in value]
    return value
