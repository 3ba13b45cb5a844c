"""What the page of a probe says."""

from pathlib import Path

import pandas as pd

from harness.probe.probe_store import write_probe
from harness.report.html_pages import write_page
from harness.report.probe_answer import best_settings, probe_answer
from tests.labs.probes import SIZES, make_probe


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    found = make_probe({"default": (1e-6, 1e-10), "other": (1e-5, 1e-10)}, notes=("the setting 'x' did not run",))
    folder, best = write_probe(found, tmp_path / "results"), best_settings(found.probe, ["mnist-dnn"])
    page = write_page(probe_answer(found.probe, folder, best), tmp_path / "reports").page
    assert page == tmp_path / "reports" / "probes" / folder.name / "index.html"
    text = page.read_text()
    for expected in (
        "2\u00a0ranks on 1\u00a0host",
        "The setting &#39;x&#39; did not run.",
        "harness sum by shared memory",
        "95\u00a0%",
        '<td class="text">mnist-dnn</td><td>712,440</td>',
    ):
        assert expected in text, expected
    for name in ("probe-time", "probe-bandwidth", "probe-settings"):
        assert text.count(f'id="{name}"') == 1
        assert (page.parent / f"{name}.svg").stat().st_size > 10_000
    assert len(pd.read_csv(page.parent / "probe-settings.csv")) == 2 * 2 * len(SIZES)
