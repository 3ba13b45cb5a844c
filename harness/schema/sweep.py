"""Sweep, a study of one workload over several layouts; Layout; Point, one launch; and what became of a study."""

import functools
import hashlib
import re
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime

import msgspec

from harness.base.errors import UserError, unknown
from harness.schema.workload import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Nodes, ranks per node, threads (= cores) per rank and GPUs per rank of one launch.

    `last_node` is the number of ranks on the last node where they do not fill it (10 ranks at 4 per node: 2), None
    where they do.

    Raises:
        UserError: a count is out of range.
    """

    nodes: int
    ranks_per_node: int = 1
    threads: int = 1
    gpus_per_rank: int = 0
    last_node: int | None = None

    def __post_init__(self) -> None:
        for field in ("nodes", "ranks_per_node", "threads"):
            if getattr(self, field) < 1:
                raise UserError(f"{field.replace('_', ' ')} {getattr(self, field)} is too small: use at least 1")
        if self.gpus_per_rank not in (0, 1):
            raise UserError(f"gpus per rank {self.gpus_per_rank} is out of range: a rank trains on 1 GPU or on none")
        if self.last_node is not None and (self.nodes == 1 or not 1 <= self.last_node < self.ranks_per_node):
            raise UserError(f"last node {self.last_node} must hold fewer than {self.ranks_per_node} ranks, at least 1")

    @property
    def ranks(self) -> int:
        """Number of MPI ranks."""
        return (self.nodes - 1) * self.ranks_per_node + (self.last_node or self.ranks_per_node)

    @property
    def cores(self) -> int:
        """Number of cores over all nodes."""
        return self.ranks * self.threads

    def __str__(self) -> str:
        """Return it in words, no two layouts in the same: ``2 ranks``, ``8 ranks on 2 nodes x 4 threads``."""
        text = f"{self.ranks} rank{'' if self.ranks == 1 else 's'}"
        if self.ranks_per_node > 1:
            text += f" on {self.nodes} node{'' if self.nodes == 1 else 's'}"
            text += f" ({self.last_node} on the last)" if self.last_node else ""
        text += f" x {self.threads} threads" if self.threads > 1 else ""
        return text + (" x 1 GPU" if self.gpus_per_rank else "")


def layout_order(layout: Layout) -> tuple[int, int, int, str]:
    """Return what layouts are sorted by; the first, of the fewest ranks, nodes and threads, is the base of others."""
    return layout.ranks, layout.nodes, layout.threads, str(layout)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One launch of a workload on a layout. `repeat` counts from 0.

    `data_id` fingerprints the data (its kind and the hash of its source). `scaling` is ``strong`` (the same
    rows at every rank count) or ``weak`` (rows in proportion to the ranks). `oversubscribe` permits more
    ranks than cores: for function, never for timing. `settings` are environment variables that tune communication
    (`harness sweep --tuned`), as pairs of name and value. `code` is what would run
    (`harness.schema.code_identity.code_identity`), so that a launch of a different code version is another launch.

    Raises:
        UserError: a name in `settings` is none.
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
        for name, _ in self.settings:
            if not re.fullmatch(r"[A-Za-z_]\w*", name, flags=re.ASCII):  # it stands in a job script, and unquoted
                raise UserError(
                    f"setting '{name}' is not the name of an environment variable: use letters, digits and _"
                )

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


def digest(value: object) -> str:
    """Return twelve hexadecimal digits of the SHA-256 of `value`'s canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(_counting(value))).hexdigest()[:12]


_key = functools.lru_cache(maxsize=16_384)(digest)


def _counting(value: object) -> object:
    """Return `value` as lists and dictionaries, in an order of their own, without what does not count."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _counting(getattr(value, f.name)) for f in fields(value) if f.compare}
    if isinstance(value, dict):
        return {name: _counting(value[name]) for name in sorted(value)}
    if isinstance(value, (tuple, list)):
        return [_counting(part) for part in value]
    return value


_MOST_LAUNCHES = 100_000
SCALINGS = ("strong", "weak")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """One workload, several layouts, `repeats` launches of each, strong or weak scaling.

    Under weak scaling `workload.samples` is the number of rows per rank. `settings` and `code` as in `Point`; the
    name has no `code`, so that launches of all states of the code lie in one folder, and has what places launches on
    other hardware: the `scheduler`, and GPUs.

    Raises:
        UserError: the scaling is unknown, a count is below 1, or weak scaling lacks its rows per rank.
    """

    workload: Workload
    layouts: tuple[Layout, ...]
    repeats: int = 3
    scaling: str = "strong"
    data_id: str = ""
    oversubscribe: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    code: str = ""
    scheduler: str = "local"

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise unknown("SCALING", self.scaling, SCALINGS)
        if self.repeats < 1:
            raise UserError(f"REPEATS={self.repeats} is too small: use at least 1")
        launches = self.repeats * len(self.layouts)
        if launches > _MOST_LAUNCHES:
            raise UserError(f"REPEATS={self.repeats} makes {launches:,} launches: ask for at most {_MOST_LAUNCHES:,}")
        if self.scaling == "weak" and self.workload.samples is None and self.workload.script is None:
            raise UserError("SCALING=weak needs SAMPLES=, the rows per rank, so that work per rank stays equal")

    @property
    def name(self) -> str:
        """The folder of the study: the same for every command that adds layouts or repeats to it."""
        workload = self.workload
        identity = digest((self.workload, self.scaling, self.data_id, self.oversubscribe, *self.settings))
        places = (
            "gpus" if any(layout.gpus_per_rank for layout in self.layouts) else "",
            self.scheduler.replace("local", ""),
        )
        return "-".join(filter(None, (workload.name, workload.preset, self.scaling, *places, identity[:8])))

    def workload_of(self, layout: Layout) -> Workload:
        """Return what is trained on `layout`: under weak scaling rows in proportion to its ranks."""
        if self.scaling != "weak" or self.workload.samples is None:
            return self.workload
        return replace(self.workload, samples=self.workload.samples * layout.ranks)

    def points(self) -> tuple[Point, ...]:
        """Return every launch: layouts in order, repeats innermost."""
        return tuple(
            Point(
                workload=self.workload_of(layout),
                layout=layout,
                repeat=repeat,
                scaling=self.scaling,
                data_id=self.data_id,
                oversubscribe=self.oversubscribe,
                settings=self.settings,
                code=self.code,
            )
            for layout in self.layouts
            for repeat in range(self.repeats)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """A layout that was asked for and not run, and the reason in one sentence."""

    layout: Layout
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """What the last command asked of this sweep, and the layouts it could not run here."""

    schema: int
    sweep: Sweep
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A launch that did not reach its end. `reason` is its first error line, `tail` its last output lines.

    `seconds` is how long it had this machine's cores, a block's shared out to its launches; 0 of a batch system's job,
    which accounting knows.
    """

    point: Point
    ended: datetime
    exit_code: int
    reason: str
    tail: str
    seconds: float = 0.0


AGAIN = 75
"""The exit code of a launch that wrote a checkpoint and is to be started again (EX_TEMPFAIL of sysexits.h)."""
