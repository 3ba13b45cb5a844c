"""What the sides of a comparison are called, and what is said of variants that trained in turns."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.confidence_intervals import Interval
from harness.analysis.sessions import STEP
from harness.cli.answer_output import print_answer
from harness.regression.launch_comparison import ALIKE, OPEN, WORSE, ComparedRow
from harness.regression.measurement import measured_in, state_names
from harness.regression.variant_samples import MEAN
from harness.regression.variant_turns import Comparison, Spent
from harness.regression.variants import Variant
from harness.report.compare_answer import side_names, variants_answer
from harness.report.html_pages import write_page
from harness.report.policies_answer import policies_answer
from harness.schema.layout import Layout
from harness.schema.presets import resolve
from harness.schema.sweep import Sweep
from tests.labs.factories import make_point, make_run, make_workload, write_run
from tests.labs.histories import make_measurement, make_summary
from tests.labs.page_text import Text
from tests.labs.sentences import says

MNIST = {"dataset": "mnist", "model": "dnn"}


def test_states_that_differ_in_versions_only_have_names_of_their_own() -> None:
    one = make_measurement([make_summary(1, 0, 1.0)])
    other = replace(one, software=replace(one.software, code="x" * 25, tensorflow="2.20.0"))
    first, second = state_names([one, other])
    assert first != second and "tensorflow 2.20.0" in second
    assert state_names([one]) == (one.state,)


def test_sides_are_called_by_what_differs_in_their_settings() -> None:
    plain, averaging = (resolve(**MNIST, sync=sync) for sync in ("gradients", "weights:epoch"))
    sides = [replace(make_measurement([make_summary(1, 0, 1.0)]), workload=each) for each in (plain, averaging)]
    assert side_names(["mnist-dnn-default-strong-c34ef8b4", "main"], sides) == ("gradients", "main")
    assert side_names(["one", "other"], sides[:1] * 2) == ("one", "other")


# Variants in turns: each beside the first, and what differs between them.

TWO = Layout(nodes=2)
SWEEP = Sweep(workload=make_workload(), layouts=(TWO,), repeats=1)


def row(slowdown: float, verdict: str, reach: float | None = 0.01) -> ComparedRow:
    """Return the row of a step's time on two ranks."""
    interval = None if reach is None else Interval(low=slowdown - reach, high=slowdown + reach)
    return ComparedRow(
        quantity=STEP,
        layout=TWO,
        decides=True,
        values=(0.001, 0.001 / (1 - slowdown)),
        launches=(4, 4),
        slowdown=slowdown,
        interval=interval,
        verdict=verdict,
    )


def compared(folder: Path, *rows: ComparedRow) -> Comparison:
    """Return the comparison of ``here`` with a variant for each of `rows`, recorded in `folder`."""
    variants = [Variant(name="here", sweep=SWEEP)]
    variants.append(Variant(name="env:A=1", sweep=SWEEP, variables={"A": "1", "B": None}))
    variants.append(Variant(name="python:/opt/python", sweep=SWEEP, python="/opt/python", prefix=("nice",)))
    variants = variants[: 1 + len(rows)]
    for number in range(len(variants)):
        write_run(folder / str(number), make_run(make_point(2)))
    measured = [measured_in(folder / str(number), variant.name, None) for number, variant in enumerate(variants)]
    return Comparison(
        variants=tuple(variants),
        measured=tuple(measured),
        rows=tuple((one,) for one in rows),
        spent=Spent(blocks=4, rounds=200, minutes=2.5),
        threshold=0.03,
        folder=folder,
    )


def test_each_variant_stands_beside_the_first_with_what_differs(tmp_path: Path) -> None:
    comparison = compared(tmp_path / "x", row(0.2, WORSE), row(0.0, ALIKE))
    answer = variants_answer(comparison, "harness compare here env:A=1 python:/opt/python --nodes 2")
    says(answer.sentence, "env:A=1", "slower than here", "0.80", "python:/opt/python", "as fast as here")
    notes = "\n".join(answer.notes)
    says(notes, "A: as here against 1", "B: as here against not set", "against /opt/python", "nothing against nice")
    assert str(tmp_path / "x") in notes and "noise" not in notes
    assert answer.code == 0 and "mnist-dnn" in answer.place and "/" not in answer.place
    page = write_page(answer, tmp_path / "reports").page
    assert page is not None
    says(str(Text(page.read_text())), "--nodes 2", "-20.0 %", "worse", "alike")


@pytest.mark.parametrize("others", [1, 2])
def test_a_terminal_of_80_columns_breaks_no_line_of_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], others: int
) -> None:
    widest = replace(row(0.234, WORSE, 0.1), quantity=STEP + MEAN, values=(0.1234, 0.1611), launches=(16, 16))
    comparison = compared(tmp_path / "x", *[widest] * others)
    print_answer(variants_answer(comparison, "harness compare"), quiet=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if widest.quantity in line]
    assert len(lines) == others
    for line in lines:
        says(line, "-23.4", "-33.4", "-13.4", WORSE)
        assert len(line) <= 80


def test_a_long_name_breaks_in_its_own_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compared(tmp_path / "x", row(0.2, WORSE), row(0.0, ALIKE))
    long_name = replace(comparison.variants[2], name="python:/opt/tensorflow-2.20/of/the/site/bin/python")
    comparison = replace(comparison, variants=(*comparison.variants[:2], long_name))
    print_answer(variants_answer(comparison, "harness compare"), quiet=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if STEP in line]
    says(lines[1], "python:/opt", "+0.0", "-1.0 to +1.0", ALIKE)


def test_variants_that_are_sure_need_no_further_block(tmp_path: Path) -> None:
    assert compared(tmp_path / "x", row(0.2, WORSE), row(0.0, ALIKE)).is_sure
    assert not replace(compared(tmp_path / "z", row(0.0, ALIKE)), rows=((),)).is_sure
    unsure = compared(tmp_path / "y", row(0.2, WORSE), row(0.01, OPEN, None))
    assert not unsure.is_sure
    says(variants_answer(unsure, "harness compare").sentence, "python:/opt/python", "3 blocks are needed")


def test_policies_in_turns_have_the_names_that_a_user_gave(tmp_path: Path) -> None:
    comparison = compared(tmp_path / "x", row(0.0, ALIKE))
    names = ("sync=gradients", "sync=weights:epoch")
    answer = policies_answer(
        comparison.folders, tmp_path / "reports", 0.5, titles=names, command="harness policies a b"
    )
    page = write_page(answer, tmp_path / "reports").page
    assert page is not None
    says(str(Text(page.read_text())), *names, "harness policies a b")
