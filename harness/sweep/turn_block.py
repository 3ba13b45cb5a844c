"""A turn block: launches started together on the same cores, which train in turns, so that they can be compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

RANK_PYTHON = "HARNESS_RANK_PYTHON"
"""Environment variable of a job: the words by which the ranks of its blocks start, in the place of Python."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSpec:
    """One launch of a turn block: the command `words` that starts its ranks, whose output goes to `log`.

    `changes` are made to the environment, None unsets. Its exit code is written to `exit_file`, if there is one. In a
    batch system the job knows its nodes, and writes the first words to `words_file`, each with a NUL byte after it.
    """

    name: str
    words: tuple[str, ...]
    log: str
    changes: Mapping[str, str | None] = field(default_factory=dict)
    exit_file: str | None = None
    words_file: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnBlock:
    """The launches of a turn block, and the file of its turns where it is a job's.

    Launches train to their end, or until counted rounds have lasted `seconds`: then all are ended. One that lets others
    wait for `limit_s` is ended too (0: never). Launches of equally many ranks make equally many steps in a turn where
    they are `alike`, and follow each other at once; else each makes as many as fill it. Those `on_gpus` share
    GPUs: where their memory does not hold all, launches train one after the other and are not compared in turns.
    """

    name: str
    launches: tuple[LaunchSpec, ...]
    rounds: str = ""
    seconds: float = 0.0
    limit_s: float = 0.0
    alike: bool = True
    on_gpus: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSeries:
    """The turn blocks of a job, one after the other, each of new processes.

    The first `least` are made in any case, the others while the speedups of the sweep in `folder` are not known well
    enough: that is looked at after each repeat, which has `of_repeat` blocks. No block begins that would not end within
    `limit_s` seconds (0: no limit); soon after these the job is ended, where the limit is `enforced`. How far the
    series is on its `nodes` of a `partition` is written to `progress_file`.
    """

    blocks: tuple[TurnBlock, ...]
    least: int = 1
    of_repeat: int = 1
    folder: str = ""
    limit_s: float = 0.0
    enforced: bool = True
    nodes: int = 1
    partition: str = ""
    progress_file: str = ""


class WhyEnded(StrEnum):
    """Why a series of blocks has ended."""

    ALL = "all blocks were made"
    ENOUGH = "the speedups are known well enough"
    LIMIT = "no other block would end within the time limit"
    FAILED = "a launch failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockMade:
    """A block that came to its end: the names of its `launches`, and its `seconds` with the start of its processes.

    `code` is the first exit code of these that is not 0.
    """

    launches: tuple[str, ...]
    seconds: float
    code: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesProgress:
    """How far a series is after so many `seconds` on `nodes` of a `partition`: the `blocks` that were made.

    It makes `least` blocks in any case and at most `most`. `why` says why it makes no more, None while it goes on, or
    where its job was ended.
    """

    blocks: tuple[BlockMade, ...]
    least: int
    most: int
    nodes: int
    partition: str
    seconds: float
    why: WhyEnded | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn of a launch: a row of `BlockEnd.turns`, whose columns are these fields in this order."""

    round: int
    launch: str
    place: int
    steps: int
    seconds: float
    cores: float
    at_s: float
    core_ns: float
    bound: str


TURN_TYPES = {
    "round": "int32",
    "launch": "str",
    "place": "int32",
    "steps": "int32",
    "seconds": "float64",
    "cores": "float64",
    "at_s": "float64",
    "core_ns": "float64",
    "bound": "str",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockEnd:
    """What came of a turn block: every launch's exit code by name, and its turns.

    Columns of `turns`, one row a turn:

    - round (int32), launch (its name), place (int32, in the round's order);
    - steps (int32): those that were timed; seconds (float64): of the slowest rank for these steps;
    - cores (float64): CPU seconds per second of the rank that had least;
    - at_s (float64): since the first round;
    - core_ns (float64): as in `RunRecord`, 0 where it was not measured;
    - bound: the cores that each rank might use, by rank, "0;1".
    """

    codes: "dict[str, int]"
    turns: "pd.DataFrame"
