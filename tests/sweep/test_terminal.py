"""What a sweep says at the terminal while it runs."""

import re
from dataclasses import replace

import pytest

from harness.base.errors import RunError, UserError
from tests.labs.sweep_lab import Lab


def flat(said: str) -> str:
    """Return what was said without its lines' ends."""
    return " ".join(said.split())


def test_what_is_to_be_done_comes_first(lab: Lab) -> None:
    sweep = lab.sweep()
    said = lab.run(sweep)
    assert "4 launches, 0 done, 4 to run" in said
    assert "data: file, real" in said
    assert "4 done, 0 to run" in lab.run(sweep)


@pytest.mark.parametrize(
    ("behaviour", "nodes", "repeats", "sentence"),
    [
        ("disturbed", (1, 2), 2, "without valid times: 2 of 4 launches, launched once more"),
        ("killed", (1, 2), 1, "killed or without valid times: 1 of 2 launches, launched once more"),
        ("busy", (2,), 2, "; that is most of the sweep, so none runs again"),
        ("fail", (2,), 6, "2 ranks: failed twice in the same way, so 4 more are not tried"),
    ],
)
def test_what_went_wrong_and_what_comes_of_it(
    lab: Lab, behaviour: str, nodes: tuple[int, ...], repeats: int, sentence: str
) -> None:
    lab.behave(r2=behaviour)
    try:
        lab.run(lab.sweep(nodes=nodes, repeats=repeats))
    except RunError as error:
        assert "launches failed" in str(error)
    assert sentence in flat(lab.said)


def test_layouts_that_do_not_run_are_named_with_the_reason(lab: Lab) -> None:
    said = lab.run(lab.sweep(nodes=(1, 4), repeats=1))
    assert "not run: 4 ranks: needs 4 cores, this machine has 2" in said


def test_a_stopped_launch_says_where_it_goes_on(lab: Lab) -> None:
    lab.behave(r1="stops")
    said = flat(lab.run(lab.sweep(nodes=(1,), repeats=1)))
    assert "stopped by SIGUSR1 in epoch 2; submitted again" in said
    assert "epoch 3; submitted again" in said


def test_a_damaged_record_is_named_with_what_is_missing(lab: Lab) -> None:
    sweep = lab.sweep(nodes=(1,), repeats=2)
    lab.run(sweep)
    first, second = (lab.results / sweep.name / point.folder for point in sweep.points())
    (first / "run.json").write_text("{")
    (second / "steps.parquet").unlink()
    said = flat(lab.run(sweep))
    assert f"runs again: '{first}/run.json' is cut or damaged" in said
    assert f"{second.name}' has no steps.parquet" in said


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("dnnn", "unknown model 'dnnn': did you mean 'dnn'"),
        ("cnn", "--model cnn needs images, but this data set has"),
        pytest.param(
            "nosuch:fn", "--model nosuch:fn cannot be imported: No module named 'nosuch'", marks=pytest.mark.slow
        ),
        pytest.param("mine:no", "--model mine:no names no function", marks=pytest.mark.slow),
        pytest.param(
            "mine:wrong",
            "--model mine:wrong fails while it is built: ZeroDivisionError: division by zero",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_model_that_cannot_be_used_is_named_before_anything_is_launched(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, model: str, sentence: str
) -> None:
    monkeypatch.chdir(lab.folder)
    (lab.folder / "mine.py").write_text("def wrong(features, classes):\n    return 1 / 0\n")
    with pytest.raises(UserError) as refused:
        lab.run(replace(lab.sweep(), workload=replace(lab.workload, model=model)))
    assert str(refused.value).startswith(sentence)
    assert lab.launched() == []


def test_progress_names_the_launch_how_fast_it_was_and_what_is_left(lab: Lab) -> None:
    said = lab.run(lab.sweep())
    assert re.search(r"\] 1 rank, launch 2 of 2: 1 s an epoch; took \d+ s", said)
    assert re.search(r"\] 2 ranks, launch 2 of 2: 1 s an epoch, 1\.00x; took \d+ s", said)
