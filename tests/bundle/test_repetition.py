"""A recorded launch repeated from its record alone: what must be the same, what may differ, and what is named."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.__main__ import run_command_line
from harness.base.errors import UserError
from harness.base.files import sha256_of
from harness.base.provenance import describe_system, relevant_environment
from harness.bundle.repetition import (
    CLOSE,
    DIFFERENT,
    NOT_COMPARED,
    SAME,
    Repetition,
    ReproducedQuantity,
    foreign_code,
    overall_verdict,
    plan_repetition,
    recorded,
)
from harness.datasets import locate
from harness.schema.record import RunRecord
from tests.labs.factories import make_launch, make_run, write_run
from tests.labs.sentences import refuses, says

LOSS = "training loss"
ACCURACY = "test accuracy"
TIME = "epoch time"
GOVERNOR = "frequency governor"


def changed(run: RunRecord, **facts: object) -> RunRecord:
    return replace(run, provenance=replace(run.provenance, **facts))


def by_quantity(lines: tuple[ReproducedQuantity, ...]) -> dict[str, str]:
    return {line.quantity: line.verdict for line in lines}


def test_the_same_again_is_the_same() -> None:
    run = make_run()
    assert Repetition(old=run, new=run).environment() == ()
    assert by_quantity(Repetition(old=run, new=run, others=(run, run, run)).results()) == {
        "weights": SAME,
        LOSS: SAME,
        ACCURACY: SAME,
        TIME: CLOSE,
    }


def test_other_weights_are_only_excused_by_what_decides_them() -> None:
    run = make_run()
    other = replace(run, weights=replace(run.weights, sha256="f" * 64))
    assert by_quantity(Repetition(old=run, new=other).results())["weights"] == DIFFERENT
    upgraded = changed(other, tensorflow="99.0")
    (line,) = Repetition(old=run, new=upgraded).environment()
    assert (line.quantity, line.now) == ("TensorFlow", "99.0")
    weights = Repetition(old=run, new=upgraded).results()[0]
    assert weights.verdict == NOT_COMPARED and "TensorFlow" in weights.remark
    assert by_quantity(Repetition(old=run, new=changed(other, python="9.9")).results())["weights"] == DIFFERENT, (
        "no reason for other bits"
    )


def test_a_time_needs_recorded_launches_and_the_same_machine() -> None:
    run = make_run()
    assert by_quantity(Repetition(old=run, new=run).results())[TIME] == NOT_COMPARED
    several = tuple(scaled(run, 1 + 0.01 * number) for number in range(6))
    assert by_quantity(Repetition(old=run, new=scaled(run, 1.05), others=several).results())[TIME] == CLOSE
    assert by_quantity(Repetition(old=run, new=scaled(run, 1.7), others=several).results())[TIME] == DIFFERENT
    elsewhere = changed(run, machine=replace(run.provenance.machine, fingerprint="other"))
    assert by_quantity(Repetition(old=run, new=elsewhere, others=several).results())[TIME] == NOT_COMPARED


def scaled(run: RunRecord, factor: float) -> RunRecord:
    """Return `run` with every epoch so many times as long."""
    epochs = (replace(epoch, seconds=tuple(factor * value for value in epoch.seconds)) for epoch in run.epochs)
    return replace(run, epochs=tuple(epochs))


def test_a_loss_beyond_the_bound_is_told() -> None:
    run = make_run()
    epochs = tuple(replace(epoch, train_loss=1.05 * (epoch.train_loss or math.nan)) for epoch in run.epochs)
    lines = Repetition(old=run, new=replace(run, epochs=epochs)).results()
    assert by_quantity(lines)[LOSS] == DIFFERENT
    says(overall_verdict(lines), "Not reproduced", LOSS)


def test_other_data_is_refused_before_anything_is_launched() -> None:
    run = make_run()
    with refuses("data of the record"):
        plan_repetition(replace(run, data=replace(run.data, sha256="0" * 64)), None, here=False)


def test_a_sweep_without_a_valid_launch_is_refused(tmp_path: Path) -> None:
    with refuses("no launch with valid"):
        recorded(tmp_path)


def test_settings_of_host_and_libraries_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    known = relevant_environment()
    assert known["UCX_TLS"] == "tcp" and "AWS_SECRET_ACCESS_KEY" not in known
    run = make_run()
    slower = changed(run, environment=known, system={GOVERNOR: "powersave"})
    told = {line.quantity: line.now for line in Repetition(old=run, new=slower).environment()}
    assert (told["UCX_TLS"], told[GOVERNOR]) == ("tcp", "powersave")
    assert all(describe_system().values())


def test_the_seed_is_the_recorded_one_also_where_only_the_workload_has_it() -> None:
    run = make_run()
    older = replace(run, seed=None, point=replace(run.point, workload=replace(run.point.workload, seed=5)))
    source = locate(older.point.workload, None)
    older = replace(older, data=replace(older.data, sha256=source.sha256))
    assert plan_repetition(older, None, here=False).workload.seed == 5


@pytest.mark.parametrize(
    ("workload", "named"),
    [
        ({"sync": "evil:Policy"}, "--sync evil:Policy"),
        ({"model": "evil:network"}, "--model evil:network"),
        ({"optimizer": "evil:make"}, "--optimizer evil:make"),
        ({"dataset": "script", "preset": "script", "data_file": "evil.py --fast", "data": "auto"}, "evil.py --fast"),
    ],
)
def test_code_that_a_record_names_runs_only_with_trust(
    workload: dict[str, str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    run = make_launch(1, 0, 1.0)
    settings = (("OMPI_MCA_btl", "^tcp"),)
    point = replace(run.point, workload=replace(run.point.workload, **workload), settings=settings)
    folder = write_run(tmp_path / "results" / "s", replace(run, point=point))
    assert run_command_line(["reproduce", str(folder)]) == 2
    said = capsys.readouterr().err
    digits = sha256_of(tmp_path / "evil.py")[:12]
    assert [text for text in (named, digits, "OMPI_MCA_btl=^tcp", "--trust") if text not in said] == []
    assert "evil" not in sys.modules and not (tmp_path / "ran").exists()
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["s"]
    planned = []

    def plan(run: RunRecord, *rest: object, **more: object) -> None:
        planned.append(run)
        raise UserError("this far")

    monkeypatch.setattr("harness.bundle.repetition.plan_repetition", plan)
    assert run_command_line(["reproduce", "--trust", str(folder)]) == 2
    assert len(planned) == 1


def test_a_record_of_the_harness_alone_needs_no_trust() -> None:
    assert foreign_code(make_run()) == ()
