"""What the caption of a figure of one's own says."""

import sys
from pathlib import Path

import pytest

from harness.report import figures
from tests.labs.factories import write_report

SWEEP = Path(__file__).parents[1] / "data" / "mnist-dnn-6x2"


MEMORY = '''
"""Memory against ranks: a figure that this test adds."""

from collections.abc import Iterator

from harness.report.answer import PageFigure
from harness.report.figures import SweepView, figure
from harness.report.svg import draw


@figure("time")
def memory(view: SweepView) -> Iterator[PageFigure]:
    peak = view.ratios.groupby("ranks")["peak_memory_bytes"].max()
    picture = draw("peak-memory", "Peak memory", lambda axes: axes.plot(peak.index, peak / 2**30, "o") and None)
    table = peak.reset_index()
    yield PageFigure(picture=picture, title="Memory", caption=f"Peak memory of {view.subject}.", table=table)
'''


def test_a_figure_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory_of_ranks.py").write_text(MEMORY)
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "harness.report.figures.memory_of_ranks", raising=False)
    page = write_report(SWEEP, tmp_path / "reports")
    monkeypatch.delitem(sys.modules, "harness.report.figures.memory_of_ranks")
    text = page.read_text(encoding="utf-8")
    assert "Peak memory of MNIST-DNN." in text
    assert text.index('id="time"') < text.index('id="peak-memory"') < text.index('id="learning"')
    assert all((page.parent / f"peak-memory.{kind}").stat().st_size for kind in ("svg", "png", "csv"))
