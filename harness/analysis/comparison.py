"""What is compared with what: the base of a comparison, and the launches of two layouts that a ratio is formed of.

The base is the layout with the fewest ranks, of these the fewest nodes, of these the fewest threads (`layout_order`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

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


def different_work(launches: pd.DataFrame, base: pd.DataFrame) -> str:
    """Return why `launches` and `base`, of one layout each, did not do the same work; an empty text where they did."""
    strong = launches["scaling"].iloc[0] == "strong"
    rows = _rows(launches, strong=strong)
    base_rows = _rows(base, strong=strong)
    if math.isclose(rows, base_rows, rel_tol=SAME_WORK):
        return ""
    unit = "rows per epoch" if strong else "rows per rank"
    return f"{rows:,.0f} {unit} against the base's {base_rows:,.0f}: not the same work, no speedup"


def _rows(launches: pd.DataFrame, *, strong: bool) -> float:
    """Return the rows of an epoch, of a rank under weak scaling."""
    first = launches.iloc[0]
    return float(first["rows"] / (1 if strong else first["ranks"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparableLaunches:
    """The launches of two layouts that their ratio is formed of. `paired`: row k of both is of one repeat."""

    base: pd.DataFrame
    group: pd.DataFrame
    paired: bool


def comparable(base: pd.DataFrame, group: pd.DataFrame) -> ComparableLaunches | None:
    """Return which valid rows of `base` and `group`, of one layout each, compare; None where none do.

    The launch order has every layout once in each repeat. Whole repeats, each launched in one session (`sessions`), are
    pairs. Where one of the two lacks a repeat, or has it twice, the launches of a single session count as unrelated.
    That can only widen an interval. Of several sessions only the pairs are left, because no launch's scatter shows how
    far sessions differ. None for fewer than 3 of those.
    """
    sessions_of_base, sessions_of_group = _sessions_of_both(base, group)
    base_repeats = base["repeat"].to_numpy()
    group_repeats = group["repeat"].to_numpy()
    session_of_base = _sessions_of_single_repeats(base_repeats, sessions_of_base)
    session_of_group = _sessions_of_single_repeats(group_repeats, sessions_of_group)
    whole_repeats = [repeat for repeat, session in session_of_base.items() if session_of_group.get(repeat) == session]
    all_paired = len(whole_repeats) == len(base) == len(group)
    if not all_paired and len({*sessions_of_base, *sessions_of_group}) > 1:
        if len(whole_repeats) < FEWEST_BLOCKS:
            return None
        base = base[np.isin(base_repeats, whole_repeats)]
        group = group[np.isin(group_repeats, whole_repeats)]
        all_paired = True
    return ComparableLaunches(base=_by_repeat(base), group=_by_repeat(group), paired=all_paired)


def _sessions_of_both(base: pd.DataFrame, group: pd.DataFrame) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of the sessions of the launches of `base` and of `group`."""
    times: list[tuple[datetime, datetime]] = []
    for launches in (base, group):
        times += zip(launches["session_begin"], launches["session_end"], strict=True)
    numbers = sessions(times)
    return numbers[: len(base)], numbers[len(base) :]


def _by_repeat(launches: pd.DataFrame) -> pd.DataFrame:
    return launches.iloc[np.argsort(launches["repeat"].to_numpy(), kind="stable")]


def _sessions_of_single_repeats(repeats: NDArray[np.int64], sessions_of_launches: Sequence[int]) -> dict[int, int]:
    """Return by repeat the session of the launch of each of the `repeats` that no other launch has."""
    launches = Counter(repeats.tolist())
    by_repeat = dict(zip(repeats.tolist(), sessions_of_launches, strict=True))
    return {repeat: session for repeat, session in by_repeat.items() if launches[repeat] == 1}


def undisturbed_launches(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `launches` (`launch_frame`) whose times are excluding contended rounds, all where none is."""
    undisturbed = launches[~launches["disturbed"].astype(bool)]
    return launches if undisturbed.empty else undisturbed
