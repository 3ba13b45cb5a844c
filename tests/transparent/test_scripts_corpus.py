"""Scripts of the corpus print on ranks what they print alone; the documentation names whatever is refused."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from harness.schema.record_notes import Note, NoteCode
from tests.mpi.launch import run_ranks, warm_python
from tests.scripts.corpus import joined, scripts
from tests.scripts.corpus.__main__ import divide_output, judge, run

ROOM = Path(__file__).parents[2] / "harness" / "transparent"
PAGE = (Path(__file__).parents[2] / "docs/own-script-internals.md").read_text()
# What a process keeps of one script must not help the next: those that change most are last, and some are alone.
TOGETHER = {
    "fits": (
        "fit-validation",
        "fit-own-metric-f1",
        "fit-own-apply",
        "fit-free-compiled-again",
        "step-clipped",
        "trap-set-vocabulary",
        "model-position-repeated-Adam",
        "habit-accumulating-step",
        "drawn-stateful-generator",
        "surroundings-optional-horovod",
        "surroundings-own-mpi",
        "surroundings-raising-numpy",
    ),
    "loops": (
        "free-numbers-eager",
        "loop-sum-object-compiled",
        "loop-healthy-dropout-compiled",
        "take-arrays-uneven",
        "training-folds-compiled",
        "training-clipped-by-row",
        "observed-losses-appended",
        "observed-numbers-kept",  # only ranks have other numbers of one batch
        "training-clock",
        "training-signal",  # the last: how many steps it makes depends on when the signal arrives
    ),
    "computed whole": (
        "model-rows-operation",
        "free-own-statistics",
        "free-second-order",
        "loop-rows-masked-compiled",
        "step-rows-negatives",
        "model-series-stateful",
        "free-on-batch-mixed",
        "habit-resting-hinge",
        "training-third-compile-masked",
        "training-row-queue",
        "take-iterator-inside",
        "observed-rows-counted",
        "observed-rows-taken",
        "observed-rows-printed",
        "observed-rows-drawn-otherwise",
        "observed-rows-drawn-eagerly",
        "observed-rows-of-shape",
        "observed-rows-by-numpy",
        "free-count-eager",  # only a launch says that it is whole
        "take-arrays-rows-masked",
    ),
    "sessions": ("session-gradients-clipped", "session-dropout"),
}
"""Scripts that one launch runs one after the other, by what they have in common."""
SOME = (
    "observed-class-counts",
    "observed-array-later",
    "observed-last-row-printed",
    "observed-process-printed",  # a second witness runs all of a launch again
    "observed-mixed-later",
    "observed-witness-left",
    "session-rows-masked",
    "free-graph-clipped",
    "trap-any-order",
    "children-trained-fork",
    "surroundings-served-and-moved",
    "surroundings-threads",
    "surroundings-trials-that-may-fail",
)
"""Scripts that are launched alone, most of them as they end the launch."""
MORE = (
    "fit-own-loss-sum",
    "step-without-call-adversaries",
    "loop-global-clip-eager",
    "session-old",
    "session-clipped-tight",
    "session-two-losses",
    "take-same-lines",
    "trap-state-unseeded",
    "loop-rows-pairs-eager",
    "loop-rows-masked-normalised-eager",
    "free-rows-words",
    "free-rows-on-batch",
    "loop-healthy-normalised-eager",
    "session-optimizer-Adam",
    "drawn-stateful-stacked",
    "drawn-own-numbers",
    "fit-own-loss-called",
    "training-folds-eager",
    "children-make-rows",
    "training-test-step-adds-up",
    "arrays-dropout",
    "surroundings-unused-horovod",
)
"""Scripts of kinds of which those above have another, or whose parts have tests without ranks: a campaign."""
# What every rank computes whole, beside the scripts whose names have `rows-`.
COMPUTED_WHOLE = (
    "model-series-stateful",
    "take-iterator-inside",
    "free-on-batch-mixed",
    "free-count-eager",
    "habit-resting-hinge",
    "free-own-statistics",
    "free-second-order",
    "training-third-compile-masked",
    "training-row-queue",
    "training-test-step-adds-up",
)
WHOLE = str(Note(code=NoteCode.COMPUTED_WHOLE, values={"reason": ""}))


def is_computed_whole(name):
    return name in COMPUTED_WHOLE or "rows-" in name


@pytest.mark.mpi
@pytest.mark.parametrize("name", [*SOME, *(pytest.param(name, marks=pytest.mark.campaign) for name in MORE)])
def test_a_script_prints_on_two_ranks_what_it_prints_alone(name, tmp_path):
    script = scripts()[name]
    if not script.refused:
        run(tmp_path / "alone", script, 1)
    run(tmp_path / "ranks", script, 2)
    verdict = judge(script, tmp_path / "alone", tmp_path / "ranks")
    assert verdict.startswith(("right", "refused: ", "told: ")), verdict
    assert (WHOLE in (tmp_path / "ranks" / "err").read_text()) == is_computed_whole(name)


@pytest.mark.mpi
@pytest.mark.parametrize("names", TOGETHER.values(), ids=TOGETHER)
def test_scripts_of_one_launch_print_on_two_ranks_what_they_print_alone(names, tmp_path):
    chosen = [scripts()[name] for name in names]
    for place, ranks in ((tmp_path / "alone", 1), (tmp_path / "ranks", 2)):
        run(place, joined(chosen), ranks)
        divide_output(place, chosen)
    verdicts = {
        script.name: judge(script, tmp_path / "alone" / script.name, tmp_path / "ranks" / script.name)
        for script in chosen
    }
    wrong = {name: verdict for name, verdict in verdicts.items() if not verdict.startswith("right")}
    assert not wrong
    (computed_whole,) = {is_computed_whole(name) for name in names}
    assert (WHOLE in (tmp_path / "ranks" / "err").read_text()) == computed_whole


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_programs_of_nested_functions_report_on_two_ranks_what_they_report_alone(tmp_path):
    script = Path(__file__).parents[1] / "scripts" / "nested_programs.py"
    alone = subprocess.run([warm_python(), script, "0", "6"], capture_output=True, text=True, check=True, cwd=tmp_path)
    ranks = run_ranks(2, "-m", "harness.transparent", "--batch", "global", "--threads", "2", script, 0, 6, cwd=tmp_path)
    assert ranks.returncode == 0, ranks.stderr[-3000:]
    one, two = programs(alone.stdout), programs(ranks.stdout)
    assert len(one) == 6
    for seed, numbers in one.items():
        assert two[seed] == pytest.approx(numbers, rel=1e-3, abs=1e-4), f"program {seed}"


def programs(text):
    """Return what each program reported, by its seed."""
    found = [json.loads(line.removeprefix("RESULT ")) for line in text.splitlines() if line.startswith("RESULT ")]
    return {program["seed"]: np.array(program["reported"]) for program in found}


def test_the_corpus_is_large_and_most_of_it_runs():
    known = scripts()
    refused = [script for script in known.values() if script.refused]
    assert len(known) >= 200
    assert len(refused) <= 0.1 * len(known)


def test_the_documentation_names_every_refusal_of_the_room():
    """Each sentence in code, its longest part without names and numbers, stands in its table."""
    for path in sorted(set(ROOM.rglob("*.py")) - {ROOM / "run_settings.py"}):  # whose sentences are of switches
        for found in re.findall(r"UserError\(\s*((?:f?\"[^\"]*\"\s*)+)\)", path.read_text()):
            sentence = "".join(re.findall(r"\"([^\"]*)\"", found))
            part = max(re.split(r"\{[^}]*\}", sentence), key=len).strip()
            assert part in PAGE, f"{path.name}: {sentence}"
