"""The tree, the bill and the proofs as tables of texts, and the answer in a sentence."""

from collections.abc import Sequence

import numpy as np

from harness.analysis import numbers
from harness.analysis.breakdown import LOSS
from harness.analysis.efficiency import TREE, Efficiency, PointTree
from harness.analysis.stats import Interval
from harness.analysis.time_breakdown import Bill, Item
from harness.explain.evidence import Explanation
from harness.explain.prove import CONFIRMED, Proof

Rows = list[tuple[str, ...]]
BILL_HEADINGS = ("Cause", "Ranks", "Beyond ideal", "Of the epoch", "Of the loss")
LAST_HEADINGS = ("Rank", "Waiting for it", "Of all waiting", "Calls it was last in", "Usually later by")
PROOF_HEADINGS = ("Taken away", "Against", "Expected gain", "Measured gain", "Pairs", "Verdict")
MINUS = "\N{MINUS SIGN}"
_NAMED = 3  # causes in the answer
_MOST_RANKS = 16  # in the table of those that are waited for


def percent(value: float, interval: Interval | None = None, places: int = 1) -> str:
    """Return ``12.3 % (11.9 to 12.8)``, the interval where there is one."""
    text = numbers.percent(value, places).replace("-", MINUS)
    if interval is None:
        return text
    low, high = (f"{100 * end:.{places}f}".replace("-", MINUS) for end in (interval.low, interval.high))
    return f"{text} ({low} to {high})"


def tree_table(trees: Sequence[PointTree], *, most: int | None = None) -> tuple[tuple[str, ...], Rows]:
    """Return headings and rows of the tree: a line for each metric, a column for each point.

    With `most` for a terminal: that many points at most, intervals of the last one only.
    """
    shown = list(trees)
    if most is not None and len(shown) > most:
        shown = [shown[round(place)] for place in np.linspace(0, len(shown) - 1, most)]
    headings = ("Efficiency (POP)", *(numbers.ranks(tree.ranks) for tree in shown))
    rows = [
        (
            f"{'. ' * metric.depth}{metric.name}",
            *(_cell(tree.metrics.get(metric.name), doubt=most is None or tree is shown[-1]) for tree in shown),
        )
        for metric in TREE
    ]
    return headings, rows


def _cell(found: Efficiency | None, *, doubt: bool) -> str:
    if found is None:
        return numbers.NONE
    certain = found.interval is None or found.interval.low == found.interval.high  # the base of a ratio
    return percent(found.value, None if certain or not doubt else found.interval)


def bills_table(bills: Sequence[Bill]) -> tuple[tuple[str, ...], Rows]:
    """Return headings and rows of all bills: a line for each cause that is worth one, a column for each point."""
    worth = {item.cause for bill in bills for item in bill.told}
    causes = [item.cause for item in bills[-1].items if item.cause in worth] if bills else []
    rows = []
    for cause in causes:
        items = [next(item for item in bill.items if item.cause == cause) for bill in bills]
        rows.append((cause.name, *(percent(item.fraction, item.fraction_interval) for item in items)))
    every = ("all", *(percent(bill.loss / bill.measured, bill.fraction_interval) for bill in bills))
    return ("Cause", *(numbers.ranks(bill.ranks) for bill in bills)), [*rows, every] if bills else []


def bill_rows(bill: Bill) -> Rows:
    """Return a line for every item that costs or gains 0.1 % of the measured time, and their sum."""
    rows = [
        (
            item.cause.name,
            str(bill.ranks),
            numbers.seconds(item.seconds).replace("-", MINUS),
            percent(item.fraction, item.fraction_interval),
            numbers.NONE if item.share is None else percent(item.share, item.share_interval, 0),
        )
        for item in bill.told
    ]
    every = sum(item.seconds for item in bill.items)
    share = numbers.NONE if any(item.share is None for item in bill.items) else percent(every / bill.loss, places=0)
    whole = percent(every / bill.measured, bill.fraction_interval)
    return [*rows, ("all", str(bill.ranks), numbers.seconds(every).replace("-", MINUS), whole, share)]


def last_rows(found: Explanation) -> Rows:
    """Return for whom the ranks of the largest point waited most, medians over its launches; none without calls."""
    point = found.scaling.points[-1]
    launches = [one for one in found.explained.last[point.layout] if one]
    values = np.median([[(one.seconds, one.share, one.calls, one.usual_s) for one in ranks] for ranks in launches], 0)
    rows: Rows = []
    for rank in sorted(range(len(values)), key=lambda rank: -values[rank][0])[:_MOST_RANKS] if launches else ():
        waited, share, calls, usual = map(float, values[rank])
        later = numbers.seconds(usual) if usual >= 0 else f"{numbers.seconds(-usual)} sooner"
        rows.append((str(rank), numbers.seconds(waited), numbers.percent(share), numbers.percent(calls), later))
    return rows


def proof_rows(proofs: Sequence[Proof]) -> Rows:
    """Return a line for every proof."""
    return [
        (
            f"{one.removes} ({one.how})",
            one.against,
            percent(one.expected.value, one.expected.interval),
            numbers.NONE if one.measured is None else percent(one.measured, one.interval),
            str(one.launches),
            one.verdict,
        )
        for one in proofs
    ]


def answer(found: Explanation) -> str:
    """Return why the largest point is not faster, in one sentence."""
    bill = found.main
    if bill is None:
        tree = found.trees[-1]
        useful = percent(tree.metrics["parallel efficiency"].value)
        alone = "there is no other point of the same work to compare"
        return f"{numbers.ranks(tree.ranks).capitalize()}: {useful} of the time is useful; {alone}."
    lost = bill.loss / bill.measured
    if lost < LOSS:
        gain = "takes less than the ideal time" if bill.loss < 0 else "loses less than 1 % of its epoch"
        return f"{numbers.ranks(bill.ranks).capitalize()}: the point {gain}, there is no loss to explain."
    dear = [item for item in bill.told if item.seconds > 0][:_NAMED]
    gains = [item for item in bill.told if item.seconds < 0]
    named = ", ".join(f"{item.cause.name} {_share(item)}" for item in dear)
    saved = f"; {', '.join(f'{item.cause.name} gains {_share(item, -1)}' for item in gains)}" if gains else ""
    assert bill.explained is not None
    return (
        f"{numbers.ranks(bill.ranks)} lose {numbers.percent(lost, 1)} of the epoch beyond the ideal, "
        f"{numbers.percent(bill.explained)} of it explained: {named}{saved}."
    )


def _share(item: Item, sign: int = 1) -> str:
    assert item.share is not None
    return numbers.percent(sign * item.share)


def proof_sentence(proofs: Sequence[Proof]) -> str:
    """Return how many proofs hold."""
    held = sum(one.verdict == CONFIRMED for one in proofs)
    return f"Counterfactual launches confirm {held} of {len(proofs)} expectations."
