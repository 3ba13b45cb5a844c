"""What is compared with what: the base of a comparison, and the launches of two layouts that a ratio is formed of.

The base is the layout with the fewest ranks, of these the fewest nodes, of these the fewest threads (`layout_order`).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

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
    begins, ends = (pd.concat([base[name], group[name]]) for name in ("session_begin", "session_end"))
    numbers = np.array(sessions(list(zip(begins, ends, strict=True))))
    of_base = _by_repeat(base, numbers[: len(base)])
    of_group = _by_repeat(group, numbers[len(base) :])
    sessions_of_both = _sessions_of_single_repeats(of_base).to_frame("base")
    sessions_of_both = sessions_of_both.join(_sessions_of_single_repeats(of_group).rename("group"), how="inner")
    whole_repeats = sessions_of_both.index[sessions_of_both["base"] == sessions_of_both["group"]]
    all_paired = len(whole_repeats) == len(base) == len(group)
    if all_paired or len(set(numbers)) == 1:
        return ComparableLaunches(base=of_base, group=of_group, paired=all_paired)
    if len(whole_repeats) < FEWEST_BLOCKS:
        return None
    return ComparableLaunches(
        base=of_base[of_base["repeat"].isin(whole_repeats)],
        group=of_group[of_group["repeat"].isin(whole_repeats)],
        paired=True,
    )


def _by_repeat(launches: pd.DataFrame, session: np.ndarray) -> pd.DataFrame:
    return launches.assign(session=session).sort_values("repeat", kind="stable")


def _sessions_of_single_repeats(launches: pd.DataFrame) -> pd.Series:
    """Return by repeat the session of each of the `launches` whose repeat no other has."""
    return launches.drop_duplicates("repeat", keep=False).set_index("repeat")["session"]


def undisturbed_launches(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `launches` (`launch_frame`) whose times are excluding contended rounds, all where none is."""
    undisturbed = launches[~launches["disturbed"].astype(bool)]
    return launches if undisturbed.empty else undisturbed
