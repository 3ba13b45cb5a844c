"""Why a sweep does not scale: efficiencies, overheads, for whom ranks wait, known causes, and what launches proved."""

from collections.abc import Sequence

import numpy as np

from harness.analysis import numbers
from harness.analysis.stats import Interval
from harness.report import captions
from harness.report.answer import Answer, Cell, Items, Section, Table, Tile
from harness.report.explain_figures import heat_map, waterfall
from harness.report.figure_origin import sweeps_origin
from harness.report.launch_summary import machine_words, run_facts
from harness.report.sweep_facts import left_out
from harness.why.explanation import TREE, Efficiency, Explanation, PointEfficiencies
from harness.why.known_causes import Finding
from harness.why.overheads import LEAST, Overhead, PointOverheads
from harness.why.proof import CONFIRMED, REFUTED, Proofs

Rows = list[tuple[str, ...]]
MINUS = "\N{MINUS SIGN}"
_NAMED = 3  # causes in the answer
_MOST_RANKS = 16  # in the table of those that are waited for
_IDEAL = (
    "What each cause takes beyond its ideal share, the base's part divided by the ratio of the ranks (weak scaling: "
    "unchanged). Below zero it is a gain. In brackets 95 % intervals over launches."
)


def explain_answer(found: Explanation, proofs: Proofs | None, findings: Sequence[Finding], command: str) -> Answer:
    """Return why the sweep does not scale; the table is of the overheads of the largest point."""
    folder, runs = found.loaded.folder.resolve().name, found.loaded.valid
    subject = captions.subject(runs[0].point.workload)
    tables = _tables(found, proofs, findings)
    figures = [heat_map(found, subject), *([waterfall(found.main, found, subject)] if found.main else [])]
    confirmed = ""
    if proofs:
        held = sum(one.verdict == CONFIRMED for one in proofs.proofs)
        confirmed = f" Counterfactual launches confirm {held} of {len(proofs.proofs)} expectations."
    meanings = Items(texts=[f"{metric.name}: {metric.meaning}." for metric in TREE])
    return Answer(
        question=f"Why does {subject} not scale better?",
        sentence=f"{_sentence(found)}{confirmed}",
        table=_overheads_table(found.main, found.network) if found.main else None,
        banners=left_out(found.loaded.runs),
        data={
            "trees": found.efficiencies,
            "bills": found.overheads,
            "launch_bills": found.launch_overheads,
            "last_ranks": found.detail.last,
            "network": found.network,
            "proofs": proofs,
            "findings": findings,
        },
        tiles=_tiles(found.efficiencies[-1]),
        facts=run_facts(runs, found.loaded.runs),
        sections=(
            *(Section(title=one.title, name=f"table-{n}", blocks=[one]) for n, one in enumerate(tables) if one.rows),
            Section(title="Figures", name="figures", blocks=figures),
            Section(title="What the efficiencies mean", name="meanings", blocks=[meanings]),
        ),
        command=command,
        kind="explain",
        place=f"explain/{folder}",
        title=f"{subject}: why it does not scale",
        when=max(run.started for run in runs),
        machine=machine_words(runs[0].provenance.machine),
        origin=sweeps_origin(command, [found.loaded]),
    )


def _tables(found: Explanation, proofs: Proofs | None, findings: Sequence[Finding]) -> list[Table]:
    headings, rows = tree_table(found.efficiencies)
    return [
        Table(
            title="Efficiencies",
            headings=headings,
            rows=rows,
            texts=(),
            note="POP's standard metrics, of the median launch: the factors of each multiply up to it. In brackets the "
            "95 % interval, a bootstrap over launches, where there are 6. The ratio of a point's global efficiency to "
            "the base's is its efficiency in the report.",
        ),
        *([_overheads_table(found.main, found.network)] if found.main else []),
        *([proof_table(proofs)] if proofs else []),
        _over_ranks("Overheads of an epoch over rank counts", found.overheads[:-1] and found.overheads, "the epoch"),
        _over_ranks("Overheads of a whole launch", found.launch_overheads, "the launch"),
        Table(
            title=f"For whom {numbers.ranks(found.scaling.points[-1].ranks)} wait",
            headings=("Rank", "Waiting for it", "Of all waiting", "Calls it was last in", "Usually later by"),
            rows=_last_rows(found),
            note="Medians over launches, seconds of an epoch, the most waited for first. The last rank of a call is "
            "the one that all others wait for; the last column: by how much a rank usually is later than the mean.",
        ),
        known_causes_table(findings),
    ]


def known_causes_table(findings: Sequence[Finding]) -> Table:
    """Return the known causes that launches show, with the overhead that each is part of."""
    return Table(
        title="Known causes",
        headings=("Known cause", "Part of", "Costs of\nan epoch", "Launches", "Evidence", "What to do"),
        rows=[
            (
                one.cause,
                one.overhead or numbers.NONE,
                Cell(text=numbers.NONE if one.cost is None else numbers.percent(one.cost, 1), value=one.cost),
                Cell(text=f"{one.launches} of {one.of}", value=one.launches),
                one.evidence,
                one.fix,
            )
            for one in findings
        ],
        left=2,
        texts=(4, 5),
        note="Known causes that the records show, with the evidence of the launch where each costs most; costs of "
        "different causes may overlap.",
    )


def _tiles(point: PointEfficiencies) -> tuple[Tile, ...]:
    """Return the tree's main branches at the largest point."""
    shown = ("global efficiency", "parallel efficiency", "load balance", "communication efficiency")
    kept = [(name, point.metrics[name]) for name in (*shown, "computation scaling") if name in point.metrics]
    at = numbers.ranks(point.ranks)
    return tuple(
        Tile(
            name=name.capitalize(),
            value=numbers.percent(one.value, 1),
            detail=f"{at}; 95 % interval {numbers.percent_span(one.interval)}" if one.interval else at,
        )
        for name, one in kept
    )


def _percent(value: float, interval: Interval | None = None, places: int = 1) -> str:
    """Return ``12.3 % (11.9 to 12.8)``, the interval where there is one."""
    text = numbers.percent(value, places).replace("-", MINUS)
    if interval is None:
        return text
    low, high = (f"{100 * end:.{places}f}".replace("-", MINUS) for end in (interval.low, interval.high))
    return f"{text} ({low} to {high})"


def tree_table(points: Sequence[PointEfficiencies], *, most: int | None = None) -> tuple[tuple[str, ...], Rows]:
    """Return headings and rows of the tree: a line for each metric, a column for each point.

    With `most` for a terminal: that many points at most, intervals of the last one only.
    """
    shown = list(points)
    if most is not None and len(shown) > most:
        shown = [shown[round(place)] for place in np.linspace(0, len(shown) - 1, most)]
    headings = ("Efficiency (POP)", *(numbers.ranks(point.ranks) for point in shown))

    def cell(found: Efficiency | None, point: PointEfficiencies) -> str:
        if found is None:
            return numbers.NONE
        certain = found.interval is None or found.interval.low == found.interval.high  # the base of a ratio
        bare = certain or (most is not None and point is not shown[-1])
        return _percent(found.value, None if bare else found.interval)

    rows = [
        (f"{'. ' * metric.depth}{metric.name}", *(cell(point.metrics.get(metric.name), point) for point in shown))
        for metric in TREE
    ]
    return headings, rows


def _overheads_table(point: PointOverheads, network: str) -> Table:
    """Return a line for every cause that costs or saves 0.1 % of the measured time, and their sum."""
    rows: Rows = [
        (
            item.cause.name,
            str(point.ranks),
            numbers.seconds(item.seconds).replace("-", MINUS),
            _percent(item.fraction, item.fraction_interval),
            numbers.NONE if item.share is None else _percent(item.share, item.share_interval, 0),
            item.cause.lowers or numbers.NONE,
        )
        for item in point.listed
    ]
    every = sum(item.seconds for item in point.items)
    known = all(item.share is not None for item in point.items)
    share = _percent(every / point.seconds, places=0) if known else numbers.NONE
    whole = _percent(every / point.measured, point.fraction_interval)
    rows.append(("all", str(point.ranks), numbers.seconds(every).replace("-", MINUS), whole, share, numbers.NONE))
    return Table(
        title=f"Overheads of an epoch on {numbers.ranks(point.ranks)}",
        headings=("Cause", "Ranks", "Beyond ideal", "Of the epoch", "Of all overhead", "Lowers"),
        rows=rows,
        wide=(5,),
        note=f"{_IDEAL} {network}.",
    )


def _over_ranks(title: str, points: Sequence[PointOverheads], whole: str) -> Table:
    """Return the overheads of all points: a line for each cause that is worth one, a column for each point."""
    worth = {item.cause for point in points for item in point.listed}
    rows = [
        (items[0].cause.name, *(_percent(item.fraction, item.fraction_interval) for item in items))
        for items in zip(*(point.items for point in points), strict=True)
        if items[0].cause in worth
    ]
    every = ("all", *(_percent(point.seconds / point.measured, point.fraction_interval) for point in points))
    headings = ("Cause", *(numbers.ranks(point.ranks) for point in points))
    rows = [*rows, every] if points else []
    return Table(title=title, headings=headings, rows=rows, texts=(), note=f"Parts of {whole}. {_IDEAL}")


def _last_rows(found: Explanation) -> Rows:
    """Return for whom the ranks of the largest point waited most, medians over its launches; none without calls."""
    point = found.scaling.points[-1]
    launches = [one for one in found.detail.last[point.layout] if one]
    values = np.median([[(one.seconds, one.share, one.calls, one.usual_s) for one in ranks] for ranks in launches], 0)
    rows: Rows = []
    for rank in sorted(range(len(values)), key=lambda rank: -values[rank][0])[:_MOST_RANKS] if launches else ():
        waited, share, calls, usual = map(float, values[rank])
        later = numbers.seconds(usual) if usual >= 0 else f"{numbers.seconds(-usual)} sooner"
        rows.append((str(rank), numbers.seconds(waited), numbers.percent(share), numbers.percent(calls), later))
    return rows


def proof_table(proofs: Proofs) -> Table:
    """Return a line for every proof."""
    return Table(
        title="Proof",
        headings=("Taken away", "Against", "Expected gain", "Measured gain", "Pairs", "Verdict"),
        rows=[
            (
                f"{one.removes} ({one.how})",
                one.against,
                _percent(one.expected.value, one.expected.interval),
                numbers.NONE if one.measured is None else _percent(one.measured, one.interval),
                str(one.launches),
                one.verdict,
            )
            for one in proofs.proofs
        ],
        tones={CONFIRMED: "good", REFUTED: "bad"},
        note=f"Launched {numbers.moment(proofs.made)} UTC on {numbers.ranks(proofs.ranks)}, in turn with the launch as "
        "it is; gains are parts of the epoch's time. What is expected was written down before. Confirmed: the two "
        "intervals overlap and noise does not hide the gain.",
    )


def _sentence(found: Explanation) -> str:
    """Return why the largest point is not faster."""
    point = found.main
    if point is None:
        last = found.efficiencies[-1]
        useful = _percent(last.metrics["parallel efficiency"].value)
        alone = "there is no other point of the same work to compare"
        return f"{numbers.ranks(last.ranks).capitalize()}: {useful} of the time is useful; {alone}."
    fraction = point.seconds / point.measured
    if fraction < LEAST:
        gain = "takes less than the ideal time" if point.seconds < 0 else "has less than 1 % overhead in its epoch"
        return f"{numbers.ranks(point.ranks).capitalize()}: the point {gain}, there is nothing to explain."
    costs = [item for item in point.listed if item.seconds > 0][:_NAMED]
    gains = [item for item in point.listed if item.seconds < 0]
    named = ", ".join(f"{item.cause.name} {_share(item)}" for item in costs)
    saved = f"; {', '.join(f'{item.cause.name} saves {_share(item, -1)}' for item in gains)}" if gains else ""
    assert point.explained is not None
    return (
        f"{numbers.ranks(point.ranks)} spend {numbers.percent(fraction, 1)} of the epoch beyond the ideal, "
        f"{numbers.percent(point.explained)} of it explained: {named}{saved}."
    )


def _share(item: Overhead, sign: int = 1) -> str:
    assert item.share is not None
    return numbers.percent(sign * item.share)
