"""What is compared with what: the base of a comparison, and the launches of two layouts that a ratio is formed of.

The base is the layout with the fewest ranks, of these the fewest nodes, of these the fewest threads (`layout_order`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.analysis.confidence_intervals import FEWEST_BLOCKS
from harness.analysis.sessions import sessions
from harness.base.errors import UserError
from harness.schema.layout import Layout, layout_order

SAME_WORK = 0.01
"""The relative difference of rows (strong scaling) or rows per rank (weak) that is still the same work."""


def in_layout_order(launches: pd.DataFrame, *, then: tuple[str, ...] = ()) -> pd.DataFrame:
    """Return the rows of `launch_frame` in the order of layouts, the base first, and `then` by other columns."""
    return launches.sort_values(["ranks", "nodes", "threads", *then], kind="stable")


def base_layout(layouts: Iterable[Layout]) -> Layout:
    """Return the base of `layouts`, at least one."""
    return min(layouts, key=layout_order)


def base_launches(launches: pd.DataFrame, base_ranks: int | None = None) -> pd.DataFrame:
    """Return the launches of the base among the valid `launches`: on the fewest ranks, or on `base_ranks`.

    Raises:
        UserError: `base_ranks` has no launch.
    """
    ordered = in_layout_order(launches)
    if base_ranks is not None:
        ordered = ordered[ordered["ranks"] == base_ranks]
    if ordered.empty:
        have = ", ".join(str(ranks) for ranks in sorted(set(launches["ranks"])))
        raise UserError(f"base {base_ranks} has no valid launch: choose one of {have}")
    base: pd.DataFrame = ordered[ordered["layout"] == ordered["layout"].iloc[0]]
    return base


def different_work(launch: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Return why two rows of `launch_frame` did not do the same work; an empty text where they did."""
    strong = launch["scaling"] == "strong"
    rows = _rows(launch, strong=strong)
    base_rows = _rows(base, strong=strong)
    if math.isclose(rows, base_rows, rel_tol=SAME_WORK):
        return ""
    unit = "rows per epoch" if strong else "rows per rank"
    return f"{rows:,.0f} {unit} against the base's {base_rows:,.0f}: not the same work, no speedup"


def _rows(launch: Mapping[str, Any], *, strong: bool) -> float:
    """Return the rows of an epoch, of a rank under weak scaling."""
    return float(launch["rows"] / (1 if strong else launch["ranks"]))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayoutLaunches:
    """The launches of one layout as what pairs them with those of another: an entry for each of them.

    `places` are their numbers in the frame that they are of, `sessions` from when to when their sessions lasted.
    """

    places: NDArray[np.int64]
    repeats: NDArray[np.int64]
    sessions: Sequence[tuple[datetime, datetime]]

    def chosen(self, which: NDArray[Any]) -> "LayoutLaunches":
        """Return those of the launches that `which` says, a mask or their numbers."""
        numbers = np.arange(len(self.places))[which]
        return LayoutLaunches(
            places=self.places[numbers],
            repeats=self.repeats[numbers],
            sessions=[self.sessions[number] for number in numbers],
        )


def layout_launches(launches: pd.DataFrame) -> LayoutLaunches:
    """Return the rows of `launches`, which are of one layout."""
    return LayoutLaunches(
        places=np.arange(len(launches)),
        repeats=launches["repeat"].to_numpy(),
        sessions=_sessions_of(launches),
    )


def _sessions_of(launches: pd.DataFrame) -> list[tuple[datetime, datetime]]:
    """Return from when to when the session of each of `launches` lasted; many launches share few."""
    begin_numbers, begins = pd.factorize(launches["session_begin"])
    end_numbers, ends = pd.factorize(launches["session_end"])
    numbers = list(zip(begin_numbers.tolist(), end_numbers.tolist(), strict=True))
    times = {(begin, end): (begins[begin], ends[end]) for begin, end in set(numbers)}
    return [times[number] for number in numbers]


def launches_by_layout(launches: pd.DataFrame) -> dict[str, LayoutLaunches]:
    """Return the rows of `launches` by layout, in the order in which these come."""
    every = layout_launches(launches)
    numbers, layouts = pd.factorize(launches["layout"])
    return {str(layout): every.chosen(numbers == number) for number, layout in enumerate(layouts)}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ComparableLaunches:
    """The launches of two layouts that their ratio is formed of. `paired`: entry k of both is of one repeat."""

    base: LayoutLaunches
    group: LayoutLaunches
    paired: bool

    @property
    def fewest(self) -> int:
        """The number of launches of the layout that has fewer."""
        return min(len(self.base.places), len(self.group.places))


def comparable(base: LayoutLaunches, group: LayoutLaunches) -> ComparableLaunches | None:
    """Return which of the valid launches of `base` and `group` compare, by repeat; None where none do.

    The launch order has every layout once in each repeat. Whole repeats, each launched in one session (`sessions`), are
    pairs. Where one of the two lacks a repeat, or has it twice, the launches of a single session count as unrelated.
    That can only widen an interval. Of several sessions only the pairs are left, because no launch's scatter shows how
    far sessions differ. None for fewer than 3 of those.
    """
    times = list(dict.fromkeys([*base.sessions, *group.sessions]))
    session_numbers = dict(zip(times, sessions(times), strict=True))
    sessions_of_base = [session_numbers[session] for session in base.sessions]
    sessions_of_group = [session_numbers[session] for session in group.sessions]
    session_of_base = _sessions_of_single_repeats(base.repeats, sessions_of_base)
    session_of_group = _sessions_of_single_repeats(group.repeats, sessions_of_group)
    whole_repeats = [repeat for repeat, session in session_of_base.items() if session_of_group.get(repeat) == session]
    all_paired = len(whole_repeats) == len(base.places) == len(group.places)
    if not all_paired and len(set(session_numbers.values())) > 1:
        if len(whole_repeats) < FEWEST_BLOCKS:
            return None
        base = base.chosen(np.isin(base.repeats, whole_repeats))
        group = group.chosen(np.isin(group.repeats, whole_repeats))
        all_paired = True
    return ComparableLaunches(base=_by_repeat(base), group=_by_repeat(group), paired=all_paired)


def _by_repeat(launches: LayoutLaunches) -> LayoutLaunches:
    return launches.chosen(np.argsort(launches.repeats, kind="stable"))


def _sessions_of_single_repeats(repeats: NDArray[np.int64], sessions_of_launches: Sequence[int]) -> dict[int, int]:
    """Return by repeat the session of the launch of each of the `repeats` that no other launch has."""
    launches = Counter(repeats.tolist())
    by_repeat = dict(zip(repeats.tolist(), sessions_of_launches, strict=True))
    return {repeat: session for repeat, session in by_repeat.items() if launches[repeat] == 1}


def undisturbed_launches(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `launches` (`launch_frame`) whose times exclude contended rounds.

    Of a layout that has no such row all are returned.
    """
    disturbed = launches["disturbed"].astype(bool)
    if not disturbed.any():
        return launches
    undisturbed: pd.DataFrame = launches[~disturbed | disturbed.groupby(launches["layout"]).transform("all")]
    return undisturbed
