"""A process beside the ranks trains undivided: mistakes of the division end at their step, healthy scripts do not."""

import random
import re
import subprocess

import pytest
import tensorflow as tf

from harness.base.cores import usable_cores
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.witness import Alone, NoWitness, PeerRank
from tests.mpi.launch import PROGRAMS, run_ranks, warm_python
from tests.scripts.corpus import HEAD, scripts

FIT = (
    HEAD
    + """
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss='mse', metrics=['mae'])
report(losses=model.fit(x, r, batch_size=50, epochs=2, verbose=0).history['loss'])
"""
)
LOOP = scripts()["loop-mean-compiled"].source
DYING = f"import os\nif os.environ.get('TF_ENABLE_ONEDNN_OPTS') == '0': os._exit(3)  # a second witness\n{LOOP}"
MISTAKES = {
    "half-scale": (FIT, 1, "gradient"),
    "metric-twice": (FIT, 1, "number"),
    "doubled-weight": (DYING, 2, "gradient"),
    "dropped-row": (LOOP, 2, "gradient"),
}  # the first step of a loop is whole


def planted(mistake, source, folder):
    """Run `source` with a mistake of the division; return what came of it, and what was found: step, what, line."""
    (folder / "script.py").write_text(source)
    words = (PROGRAMS / "planted_division.py", mistake, "--batch", "global", "--threads", 1, "script.py")
    finished = run_ranks(2, *words, cwd=folder, timeout=240)
    sentence = r"harness: rank 0: in step (\d+) the (.*) \(script.py, line (\d+)\): divided over ranks"
    return finished, re.findall(sentence, finished.stderr)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_the_division_ends_the_launch_at_its_step_and_line(mistake, tmp_path):
    source, step, kind = MISTAKES[mistake]
    finished, [(found, what, line)] = planted(mistake, source, tmp_path)
    assert finished.returncode == 2, finished.stderr[-3000:]
    assert (int(found), what.split()[0]) == (step, kind)
    assert ("model.fit(" if source is FIT else "step(") in source.splitlines()[int(line) - 1]
    assert "RESULT" not in finished.stdout


EVEN = ("fit-arrays-even", "free-on-batch", "model-cnn-norm")
UNEVEN = ("fit-dataset", "fit-weights", "fit-eagerly", "step-mean", "loop-mean-compiled", "loop-adam-eager")
SPARSE = ("model-text-mean", "free-embedding")
METRICS = ("fit-arrays-even", "fit-metric-Precision", "loop-metrics-compiled", "loop-metrics-eager")
SUITED = {
    "doubled-weight": UNEVEN,
    "number-twice": ("step-mean", "loop-mean-compiled", "free-embedding"),
    "swapped-order": ("fit-dataset", "free-on-batch", "loop-mean-compiled", "loop-adam-eager", "free-embedding"),
    "own-statistics": ("model-cnn-norm", "drawn-dropout-normalised", "model-cnn-renorm"),  # in loops the probe sees it
    **dict.fromkeys(("half-scale", "one-percent"), EVEN),
    **dict.fromkeys(("metric-twice", "metric-own"), METRICS),
    **dict.fromkeys(("sparse-shifted", "sparse-sum"), SPARSE),
    **dict.fromkeys(("dropped-row", "doubled-row", "same-rows", "unequal-start"), (*EVEN, *UNEVEN, *SPARSE)),
    **dict.fromkeys(
        ("lost-gradient", "lost-last", "rank-twice", "rank-lost", "sign", "turned", "stale-gradient"), (*EVEN, *UNEVEN)
    ),
}


@pytest.mark.mpi
@pytest.mark.campaign
def test_thirty_mistakes_drawn_by_lot_are_found(tmp_path):
    """Print the step in which each is found."""
    known, lost = scripts(), []
    pairs = [(mistake, name) for mistake, names in SUITED.items() for name in names]
    for mistake, name in random.Random(35).sample(pairs, 30):
        folder = tmp_path / f"{mistake}-{name}"
        folder.mkdir()
        finished, found = planted(mistake, known[name].source, folder)
        last = (finished.stderr.strip().splitlines() or [""])[-1]
        step, what, _ = found[0] if found else ("", f"exit code {finished.returncode}: {last}", "")
        print(f"{mistake:16}{name:32}{step:>4}  {what}", flush=True)
        lost += [] if found else [(mistake, name)]
    assert not lost


HEALTHY = (
    "model-dropout",
    "model-noise",
    "loop-healthy-dropout-compiled",
    "loop-healthy-dropout-eager",
    "loop-healthy-noise-compiled",
    "loop-healthy-normalised-compiled",
    "trap-variational",
    "take-shuffled",
    *(name for name in scripts() if name.startswith("drawn-")),
)


@pytest.mark.mpi
@pytest.mark.campaign
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_script_ends_well_whatever_its_seed(name, tmp_path):
    """Print how many gradients the witness has judged of each seed's training, or why none."""
    for seed in range(1, 6):
        source = scripts()[name].source.replace("set_random_seed(1)", f"set_random_seed({seed})")
        (tmp_path / "script.py").write_text(source)
        words = ("-m", "harness.transparent", "--batch", "global", "--threads", 1, "script.py")
        finished = run_ranks(2, *words, cwd=tmp_path, timeout=240)
        told = [line for line in finished.stderr.splitlines() if "witness" in line]
        print(f"{name:34}{seed} {finished.returncode} {' '.join(told)[:160]}", flush=True)
        assert finished.returncode == 0, finished.stderr[-3000:]


@pytest.mark.mpi
@pytest.mark.slow
def test_a_batch_per_rank_is_compared_with_as_many_batches_of_the_script(tmp_path):
    """On the cores of both ranks, each of which has its own: the launch waits for it. Weights need no seed."""
    drawn = "model.set_weights([np.random.RandomState().randn(*v.shape) for v in model.get_weights()])\nmodel.compile"
    cores = "import os\nprint('CORES', *sorted(os.sched_getaffinity(0)), flush=True)\n"
    (tmp_path / "script.py").write_text(cores + FIT.replace("model.compile", drawn))
    words = (warm_python(), "-m", "harness", "run", "-n", "2", "--witness", "all", "script.py")
    finished = subprocess.run(words, cwd=tmp_path, timeout=240, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    agreed = str(Note(code=NoteCode.WITNESS_AGREED, values={"steps": 6, "trainings": 1, "gap": 0.0}))
    assert agreed.partition("apart by")[0] in finished.stderr
    logs = (
        finished.stdout,
        *((tmp_path / "harness-logs" / f"{name}.log").read_text() for name in ("rank-1", "witness")),
    )
    first, second, both = ({*re.search("CORES (.*)", log)[1].split()} for log in logs)
    assert both == first | second
    assert not first & second or usable_cores() < 2


class Observer(PeerRank):
    """A rank that keeps what it would compare."""

    def __init__(self, steps):
        super().__init__(steps=steps, over=False)
        self.observations = []
        self.rests = 0

    def take(self, observation):
        self.observations.append(observation)

    def rest(self):
        self.rests += 1


@pytest.mark.parametrize("compiled", [False, True])
def test_the_first_gradients_of_each_training_are_looked_at_and_the_numbers_of_their_steps(compiled):
    observer, variable = Observer(steps=2), tf.Variable([1.0], name="kernel")

    def step(number):
        (gradient,) = observer.gradients([number * tf.ones([1])], [variable], tf.constant(8.0), "training")
        return gradient

    function = tf.function(step) if compiled else step
    for number in (1.0, 2.0, 3.0):
        assert float(function(tf.constant(number))[0]) == number
        observer.numbers("step", {"loss": tf.constant(number), "rows": tf.ones([3])})
    kinds = [(seen.kind, seen.rows) for seen in observer.observations]
    assert kinds == [("gradient", 8.0), ("number", 0.0), ("gradient", 8.0)]
    assert observer.over
    assert observer.rests == 1


def test_each_training_is_judged_for_itself():
    observer, first, second = Observer(steps=1), tf.Variable([1.0]), tf.Variable([1.0])
    for variable in (first, first, second):
        observer.gradients([tf.ones([1])], [variable], None, "training")
    assert [seen.training for seen in observer.observations] == [0, 1]


def test_a_rank_whose_witness_is_over_looks_at_nothing():
    rank = PeerRank()
    assert rank.over
    gradients = [tf.ones([1])]
    assert rank.gradients(gradients, [tf.Variable([1.0])]) == gradients
    assert rank.numbers("step", 1.0) == 1.0


def test_without_a_witness_and_alone_everything_comes_back():
    witness = NoWitness()
    assert witness.share(7) == 7
    assert witness.over and not witness.is_witness
    assert Alone().allgather(3) == [3]
