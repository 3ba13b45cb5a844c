"""`harness bench` as a page: the harness beside its alternatives."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from harness.analysis import numbers
from harness.bench.contenders import CONTENDERS
from harness.bench.page import bench_files, grids, header, remarks
from harness.bench.plan import BATCH_PER_RANK, BenchRecord
from harness.bench.table import RATIOS, WorkloadRow, shown, tabulate
from harness.report.answer import Banner, FigureBlock, Table, Tile, facts
from harness.report.launch_summary import commit_words, core_hours, machine_words
from harness.report.publish import Page, PageSummary, publish
from harness.report.render import Head
from harness.report.svg import BLUE, MUTED, draw

FOLDER = "bench"


def write_bench_page(record: BenchRecord, reports: Path) -> Path:
    """Write ``REPORTS/bench/index.html`` with the record, its table and the page as text beside it; return its path.

    Raises:
        UserError: the folder holds something else than a report, or cannot be written to.
    """
    lines = tabulate(record)
    head = _head(record, lines)
    figure = _figure(lines[-1]) if lines else None
    remarked = remarks(record)
    values = {
        "banners": tuple(Banner(kind="warning", text=text.replace("**", "")) for text in remarked[:3]),
        "tables": [
            Table(title=title, headings=tuple(headings), rows=tuple(tuple(_plain(row)) for row in rows), texts=())
            for title, headings, rows in grids(record, lines)
        ],
        "figures": (figure,) if figure else (),
        "lines": [*header(record), *(text.replace("**", "") for text in remarked[3:])],
        "lines_title": "Conditions",
        "tones_of": {},
    }
    summary = PageSummary(
        kind="bench", title="The harness and its alternatives", answer=head.answer, when=record.started,
        machine=machine_words(record.machine),
    )  # fmt: skip
    page = Page(
        place=FOLDER, template="tables.html.j2", summary=summary, head=head, values=values,
        figures=(figure,) if figure else (), files=bench_files(record),
    )  # fmt: skip
    return publish(page, reports)


def _plain(row: Sequence[str]) -> list[str]:
    return [cell.replace("**", "") for cell in row]


def _head(record: BenchRecord, lines: Sequence[WorkloadRow]) -> Head:
    """Return the first screen: the ratios of the last workload that was measured."""
    known = [(ratio, cell) for ratio, cell in zip(RATIOS, lines[-1].ratios, strict=True) if cell.count] if lines else []
    said = [f"{ratio.title}: {cell.middle:.2f} ({cell.low:.2f} to {cell.high:.2f})" for ratio, cell in known[:3]]
    answer = f"{lines[-1].workload}: {'; '.join(said)}." if said else "Nothing could be compared yet."
    spent = sum(CONTENDERS[one.contender].ranks * one.wall_s for one in record.samples)
    rows = ", ".join(f"{line.workload} {numbers.count(line.rows)} rows" for line in lines)
    options = [f"WORKLOADS={','.join(record.workloads)}", f"ROUNDS={record.rounds}", f"SEED={record.seed}"]
    if set(shown(record)) != set(CONTENDERS):
        options.append(f"CONTENDERS={','.join(shown(record))}")
    options += ["HOROVOD_PYTHON=PATH"] if "horovod" in shown(record) else []
    options += [name for name, on in (("QUICK=1", record.quick), ("FORCE=1", record.forced)) if on]
    return Head(
        question="How fast is the harness beside Keras, MultiWorkerMirroredStrategy and PyTorch DDP?",
        answer=answer,
        tiles=tuple(
            Tile(name=ratio.title, value=f"{cell.middle:.2f}", detail=f"{cell.low:.2f} to {cell.high:.2f} over rounds")
            for ratio, cell in known[:5]
        ),
        facts=facts(
            [
                ("Machine", machine_words(record.machine)),
                ("Date", f"{numbers.moment(record.started)} UTC"),
                ("Data", f"synthetic twins: {rows}"),
                ("Batch", f"{BATCH_PER_RANK} per rank"),
                ("Commit", commit_words(record)),
                ("Cost", f"{core_hours(spent)} in {numbers.plural(len(record.samples), 'launch')}"),
            ]
        ),
        command=" ".join(["make bench", *options]),
    )


def _figure(line: WorkloadRow) -> FigureBlock | None:
    """Return every contender's throughput on the last workload; None where none was measured."""
    known = [(_title(name), cell) for name, cell in line.rates.items() if cell.count]
    if not known:
        return None
    title = f"Training throughput on {line.workload}"

    def paint(axes: Axes) -> None:
        for place, (_, cell) in enumerate(known):
            axes.barh([place], [cell.middle], height=0.62, color=BLUE.light)
            axes.plot([cell.low, cell.high], [place, place], color=MUTED.light, linewidth=1.4)
        axes.set_yticks(range(len(known)), [name for name, _ in known])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlim(left=0)
        axes.set_xlabel("Thousand rows per second, all ranks together")

    table = pd.DataFrame(
        [{"contender": name, "median": cell.middle, "least": cell.low, "most": cell.high} for name, cell in known]
    )
    spoken = "; ".join(f"{name}: {cell.middle:.3g}" for name, cell in known)
    picture = draw("throughput", title, paint, (7.2, 1.0 + 0.32 * len(known)), numbers=spoken)
    return FigureBlock(
        picture=picture, title=title, caption="Bars: medians of the rounds; strokes: least to most.", table=table
    )


def _title(name: str) -> str:
    return CONTENDERS[name].title if name in CONTENDERS else name
