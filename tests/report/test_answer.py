"""What a sweep's answer says at the terminal."""

from pathlib import Path

from harness.base.exit_codes import UNDECIDED
from harness.report.sweep_answer import report_sweep
from tests.labs.factories import make_launch, make_point, make_run, write_run, write_study


def test_a_sweep_answers_as_its_page_does(tmp_path: Path) -> None:
    folder = tmp_path / "results/study"
    write_study(folder)
    for repeat in range(6):
        write_run(folder, make_launch(1, repeat, 2.0 + repeat / 100))
        write_run(folder, make_launch(2, repeat, 1.25 - repeat / 100))
    answer = report_sweep(folder, tmp_path / "reports")
    assert answer.page is not None
    page = answer.page.read_text().replace("&nbsp;", " ").replace("\u00a0", " ")
    assert answer.sentence.replace("\u00a0", " ") in page
    assert "95 % CI" in answer.sentence and answer.code == 0
    assert answer.table is not None
    one, two = ([str(cell).replace("\u00a0", " ") for cell in row] for row in answer.table.rows)
    assert one[:3] == ["1", "2.02 s", "1.00"] and two[:2] == ["2", "1.22 s"] and two[2] == "1.65"


def test_a_sweep_without_a_valid_launch_does_not_end_with_0(tmp_path: Path) -> None:
    for name, oversubscribe, expected in (("busy", False, UNDECIDED), ("asked", True, 0)):
        write_study(tmp_path / name)
        point = make_point(1)
        point = type(point)(workload=point.workload, layout=point.layout, oversubscribe=oversubscribe)
        write_run(tmp_path / name, make_run(point, invalid=("other processes kept 1.5 of 2 cores busy",)))
        answer = report_sweep(tmp_path / name, tmp_path / "reports")
        assert (answer.code, "is valid" in answer.sentence) == (expected, True)
