"""What is compared with what: the base of a comparison, and the launches of two layouts that a ratio is formed of.

The base is the layout with the fewest ranks, of these the fewest nodes, of these the fewest threads (`layout_order`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from harness.analysis.confidence_intervals import FEWEST_LAUNCHES, Interval, ratio_interval
from harness.analysis.turn_blocks import BlockTimes
from harness.base.errors import UserError
from harness.schema.layout import Layout, layout_order

# Sessions: launches without an hour's pause between them, which share what the machine was like.

SESSION_GAP = timedelta(hours=1)
SESSION_SPREAD = 0.02
"""The relative deviation between sessions that stands in where too few were measured."""


def sessions(times: Sequence[tuple[datetime, datetime]]) -> tuple[int, ...]:
    """Return the number of the session, from 0 in order of time, of launches that started and ended at `times`.

    A session ends where nothing runs for `SESSION_GAP`: what comes later may find the machine in another state
    (other neighbours on the host, another clock rate), which all its launches share. The levels are those of
    Kalibera & Jones, "Rigorous Benchmarking in Reasonable Time" (ISMM 2013): launches within sessions.
    """
    session_of_launch = [0] * len(times)
    session = -1
    session_end: datetime | None = None
    for place in sorted(range(len(times)), key=lambda place: times[place]):
        begin, end = times[place]
        if session_end is None or begin - session_end > SESSION_GAP:
            session += 1
            session_end = end
        session_end = max(session_end, end)
        session_of_launch[place] = session
    return tuple(session_of_launch)


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
    far sessions differ. None for fewer than 6 of those.
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
    if len(whole_repeats) < FEWEST_LAUNCHES:
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


def paired_ratio(base: pd.DataFrame, group: pd.DataFrame) -> Interval | None:
    """Return the 95 % interval of the median time of `base` over that of `group`, of their `comparable` launches."""
    pair = comparable(base, group)
    return ratio_interval(pair.base["seconds"], pair.group["seconds"], paired=pair.paired) if pair else None


def undisturbed_launches(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `launches` (`launch_frame`) whose times are on undisturbed cores, all where none is."""
    undisturbed = launches[~launches["disturbed"].astype(bool)]
    return launches if undisturbed.empty else undisturbed


def block_log_ratios(base: pd.DataFrame, group: pd.DataFrame, *, as_it_ran: bool = False) -> list[float]:
    """Return the logarithm of the base's epoch time over the group's in every block in which both trained in turns.

    `base` and `group` are rows of `launch_frame` of one layout each. A block in which the base's launch was not
    valid does not count.
    """
    log_steps = math.log(float(base["steps"].iloc[0]) / float(group["steps"].iloc[0]))
    base_blocks = {launch: id(block) for launch, block in zip(base["run"], base["turn_block"], strict=True)}
    log_ratios = []
    for launch, block in zip(group["run"], group["turn_block"], strict=True):
        base_launch = _base_launch(block, base_blocks)
        if base_launch:
            base_step = block.as_it_ran[base_launch] if as_it_ran else block.step_seconds(base_launch)
            step = block.as_it_ran[launch] if as_it_ran else block.step_seconds(launch)
            log_ratios.append(math.log(base_step / step) + log_steps)
    return log_ratios


def _base_launch(block: BlockTimes, base_blocks: Mapping[str, int]) -> str:
    """Return the valid launch of the base in `block`, an empty text where there is none.

    `base_blocks` has by launch the identity of its own block. A block's base may have its record of another block, and
    so may a launch that was made again, whose turns here do not count.
    """
    for launch, own_block in base_blocks.items():
        if block.has(launch) and (launch == block.base or own_block == id(block)):
            return launch
    return ""
