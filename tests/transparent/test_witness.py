"""A process beside the ranks trains undivided: mistakes of the division end at their step, healthy scripts do not."""

import contextlib
import os
import random
import re
import subprocess
import sys
import time
from multiprocessing import Pipe

import numpy as np
import pytest
import tensorflow as tf

from harness.base.cores import usable_cores
from harness.base.errors import UserError
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.witness import Alone, NoWitness, PeerRank, observed_rank, witness_process
from harness.transparent.witness.observation import Observation, compared, measures
from harness.transparent.witness.observed_rank import ObservedRank
from harness.transparent.witness.observed_state import ObservedState, VariableKey, VariableKind
from harness.transparent.witness.peer_rank import NUDGES, SCRIPT_END
from harness.transparent.witness.witness_process import WitnessProcess
from harness.transparent.witness.written_outputs import Written, WrittenOutputs
from tests.labs.alike_ranks import alike_runtime
from tests.labs.sentences import says
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


CANCELLING = """
import keras
import numpy as np
print('DRAWN', np.random.default_rng(5).random(), flush=True)
rng = np.random.RandomState(0)
x = 1e4 * rng.randn(300, 12)
s = rng.randn(300, 4)
for b in range(0, 300, 50): s[b:b + 50] -= x[b:b + 50] @ (np.linalg.pinv(x[b:b + 50]) @ s[b:b + 50] - 1e-11)
model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4, use_bias=False)])
model.compile(keras.optimizers.SGD(1e-3), lambda s, p: keras.ops.sum(p * s, -1))
model.fit(x.astype('float32'), s.astype('float32'), batch_size=50, epochs=2, shuffle=False, verbose=0)
"""


@pytest.mark.mpi
@pytest.mark.slow
def test_a_second_witness_draws_as_the_first_where_the_script_begins_with_an_import(tmp_path):
    """Libraries that are imported seed generators of their own. A witness is that of ranks."""
    (tmp_path / "script.py").write_text(CANCELLING)
    words = (warm_python(), "-m", "harness", "run", "-n", "2", "script.py")
    finished = subprocess.run(words, cwd=tmp_path, timeout=240, capture_output=True, text=True)
    drawn = f"DRAWN {np.random.default_rng(5).random()}"
    logs = [(tmp_path / "harness-logs" / f"{name}.log").read_text() for name in ("witness", "witness-again")]
    assert [drawn in text for text in (finished.stdout, *logs)] == [True, True, True], finished.stderr[-3000:]


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


WORDS = "import sys\nprint('WORDS', sys.orig_argv, flush=True)\n"
SETTING = "import os\nos.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'\n"
HIDDEN_MPI = "import importlib\nimportlib.import_module('mpi4' + 'py.MPI').COMM_WORLD.Get_rank()\n"
_AGREEMENT = Note(code=NoteCode.WITNESS_AGREED, values={"steps": 6, "trainings": 1, "gap": 0.0})
AGREED = str(_AGREEMENT).partition("apart by")[0]


@pytest.mark.mpi  # a rank's witness is forked from it
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "is_forked", "note"),
    [
        (HEAD + WORDS + FIT, True, AGREED),
        (SETTING + HEAD + WORDS + FIT, False, AGREED),
        (HEAD + WORDS + "from mpi4py import MPI\nassert MPI.COMM_WORLD.Get_size() == 1\n" + FIT, False, AGREED),
        (HEAD + WORDS + HIDDEN_MPI + FIT, True, str(Note(code=NoteCode.WITNESS_SAW_NOTHING))),
    ],
    ids=["plain", "variables", "MPI", "hidden MPI"],
)
def test_the_witness_is_forked_where_nothing_can_come_before_the_import_of_tensorflow(
    source, is_forked, note, tmp_path
):
    (tmp_path / "script.py").write_text(source)
    words = (sys.executable, "-m", "harness", "run", "-n", "2", "script.py")
    finished = subprocess.run(words, cwd=tmp_path, timeout=240, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert note in finished.stderr
    of_rank = re.findall("WORDS .*", finished.stdout)
    of_witness = re.findall("WORDS .*", (tmp_path / "harness-logs" / "witness.log").read_text())
    assert len(of_rank) == len(of_witness) == 1
    assert (of_rank == of_witness) == is_forked


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


# Rank 0 and the witness compare lengths and projections: a mistake shows among rounding.


def gradient(*parts):
    return Observation("gradient", tuple("abcdefgh"[: len(parts)]), np.array([measures(*part) for part in parts]))


def number(value):
    return Observation("number", ("loss",), np.array([[value]]))


def test_a_difference_is_found_among_rounding():
    """Twice as much, and one row of 64 less; not a gradient that is nothing but rounding, nor another order of rows."""
    rng = np.random.default_rng(0)
    rows, index = rng.standard_normal((64, 300)).astype("f4"), rng.integers(0, 9, 64)
    noise = 1e-6 * rng.standard_normal((2, 40)).astype("f4")
    whole = gradient([rows.mean(0)], [rows, index], [noise[0]])
    order = rng.permutation(64)
    assert compared(whole, gradient([rows[order].mean(0)], [rows[order], index[order]], [noise[1]]))[0] < 1e-5
    assert compared(whole, gradient([2 * rows.mean(0)], [rows, index], [noise[0]]))[1] == "a"
    apart, name = compared(whole, gradient([rows[:-1].mean(0)], [rows, index], [noise[0]]))
    assert name == "a"
    assert 0.01 < apart < 1
    apart, name = compared(whole, gradient([rows.mean(0)], [rows, (index + 1) % 9], [noise[0]]))
    assert name == "b"
    assert apart > 0.1
    gone, rounded = gradient([noise[0]]), gradient([noise[1]])
    assert compared(gone, rounded)[0] > 1
    assert compared(gone, rounded, least=0.1)[0] < 1e-3


def test_numbers_that_overflow_alike_are_equal_and_others_are_not():
    assert compared(number(np.nan), number(np.nan))[0] == 0
    assert compared(number(np.inf), number(np.inf))[0] == 0
    assert compared(number(np.nan), number(1.0))[0] == np.inf
    assert compared(number(1.0), number(1.02))[0] == pytest.approx(0.02 / 1.02)


def test_the_measures_of_a_sparse_gradient_do_not_depend_on_its_order():
    values, indices = np.arange(6.0).reshape(3, 2), np.array([4, 0, 4])
    np.testing.assert_allclose(measures(values, indices), measures(values[::-1], indices[::-1]))


def test_observations_are_compared_by_kind_training_and_names():
    first = Observation("gradient", ("a",), np.zeros((1, 5)), training=1)
    assert first.key == ("gradient", 1, ("a",))
    assert first._replace(training=2).key != first.key


# Rank 0 compares what it observes with what the witness sends, and ends the ranks at a difference.


def observation(value, *, rows=8.0, kind="gradient", name="kernel"):
    return Observation(kind, (name,), np.full((1, 5), value), rows=rows)


class Launch:
    """Rank 0 of a launch: `witnesses` are the other ends of the lines to its witnesses."""

    def __init__(self, monkeypatch, patience_s=60.0):
        self.errors = []
        self.witnesses = []
        self.runtime = alike_runtime()
        monkeypatch.setattr(observed_rank, "abort", self._abort)
        monkeypatch.setattr(WrittenOutputs, "install", lambda outputs: None)  # it would hear of this process's files
        self.rank = ObservedRank(self.runtime.world, self._spawn, 3, patience_s)
        self.rank.install(self.runtime)

    def _spawn(self, name, **switches):
        ours, theirs = Pipe()
        self.witnesses.append(theirs)
        if name == "witness-again":
            theirs.send(self.again)
        return ours

    def _abort(self, world, error):
        self.errors.append(error)
        raise error

    def send(self, message):
        self.witnesses[0].send(message)


@pytest.fixture
def launch(monkeypatch):
    launch = Launch(monkeypatch)
    yield launch
    for line in launch.witnesses:
        line.close()


def codes(launch):
    return [note.code for note in launch.runtime.notes]


def test_equal_observations_agree(launch):
    launch.send(observation(1.0))
    launch.rank.take(observation(1.0 + 1e-6))
    assert launch.rank.summary().values["steps"] == 1
    assert not launch.errors


def test_a_difference_beyond_rounding_ends_all_ranks(launch):
    launch.again = observation(1.0)
    launch.send(observation(1.0))
    with pytest.raises(UserError):
        launch.rank.take(observation(2.0))
    assert len(launch.errors) == 1
    assert len(launch.witnesses) == 2  # another that rounds otherwise


def test_a_script_that_magnifies_rounding_is_not_judged(launch):
    launch.again = observation(1.5)
    launch.send(observation(1.0))
    launch.rank.take(observation(1.4))
    assert launch.rank.over
    assert not launch.errors
    assert codes(launch) == [NoteCode.WITNESS_SAW_NOTHING, NoteCode.ROUNDING_MAGNIFIED]


def state(value, name="seen:0"):
    kind = VariableKind(name, "float32", ())
    return ObservedState("step", {kind: 1}, {VariableKey(kind, 0): np.array([value])})


@pytest.fixture
def seen(launch):
    """The variable of `state`, as rank 0 has it."""
    variable = tf.Variable(0.0, name="seen")
    launch.rank.note_variable(variable)
    return variable


def test_equal_variables_say_nothing(launch, seen):
    launch.send(state(32.0))
    launch.rank.take(state(32.0))
    assert not launch.rank.has_ended
    assert not launch.errors


def test_a_variable_that_holds_another_value_ends_all_ranks(launch, seen):
    launch.again = state(32.0)
    launch.send(state(32.0))
    with pytest.raises(UserError):
        launch.rank.take(state(16.0))
    (error,) = launch.errors
    assert says(error, "'seen'", "16", "32", "test_witness.py")


def test_a_variable_that_the_script_alone_does_not_have_twice_is_left_out(launch, seen):
    launch.again = state(30.0)
    for value in (16.0, 14.0):
        launch.send(state(32.0))
        launch.rank.take(state(value))
    assert not launch.rank.has_ended
    assert len(launch.witnesses) == 2  # one that rounds otherwise was asked once


def printed(text):
    return ObservedState("step", {}, {}, {"what train.py, line 3 prints": Written(lines=(text,))})


def test_equal_texts_say_nothing(launch):
    launch.send(printed("loss 0.51"))
    launch.rank.take(printed("loss 0.51"))
    assert not launch.rank.has_ended
    assert len(launch.witnesses) == 1


def test_another_text_ends_all_ranks(launch):
    launch.again = printed("seen 32")
    launch.send(printed("seen 32"))
    with pytest.raises(UserError):
        launch.rank.take(printed("seen 16"))
    (error,) = launch.errors
    assert says(error, "train.py, line 3", "seen 16", "seen 32")


def test_a_text_that_the_script_alone_does_not_print_twice_is_left_out(launch):
    launch.again = printed("process 4006")
    for number in (1234, 5678):
        launch.send(printed("process 2003"))
        launch.rank.take(printed(f"process {number}"))
    assert not launch.rank.has_ended
    assert len(launch.witnesses) == 2  # one that rounds otherwise was asked once


def test_what_a_script_leaves_at_its_end_is_compared_if_the_witness_comes_there(monkeypatch):
    launch, kernel = Launch(monkeypatch, patience_s=1.0), tf.Variable([1.0])
    launch.send(observation(1.0))
    monkeypatch.setattr(launch.rank, "observed_state", lambda place: printed("seen 16")._replace(place=place))
    launch.rank.script_end()  # nothing is trained yet
    launch.send(Observation("gradient", (kernel.name,), np.array([measures([1.0])]), training=0))
    launch.rank.gradients([tf.ones([1])], [kernel], None, "training")
    launch.rank.script_end()  # the witness does not come
    assert not launch.rank.has_ended
    launch.again = printed("seen 32")._replace(place=SCRIPT_END)
    launch.send(launch.again)
    with pytest.raises(UserError):
        launch.rank.script_end()


@pytest.mark.parametrize(("value", "agree"), [(1.005, True), (1.5, False)])
def test_predictions_are_compared(launch, value, agree):
    launch.again = observation(1.0, kind="prediction")
    launch.send(observation(1.0, kind="prediction"))
    with contextlib.nullcontext() if agree else pytest.raises(UserError):
        launch.rank.take(observation(value, kind="prediction"))


def test_arrays_are_looked_at_once_a_step_is_made():
    observer, kernel = Observer(steps=2), tf.Variable([1.0], name="kernel")
    observer.arrays("predict", np.ones([3, 2]))
    observer.gradients([tf.ones([1])], [kernel], None, "training")
    observer.arrays("predict", {"one": np.ones([4]), "words": np.array(["a"])})
    observer.arrays("predict", np.array(["a"]))
    _, prediction = observer.observations
    assert (prediction.kind, prediction.names, prediction.measures[0, 0]) == ("prediction", ("predict 0",), 2.0)


def test_variables_are_looked_at_after_the_steps_whose_gradients_are():
    observer, kernel = Observer(steps=2), tf.Variable([1.0], name="kernel")
    counter = tf.Variable(3, name="counter")
    for variable in (kernel, counter):
        observer.note_variable(variable)
    observer.state("step")  # nothing is trained yet
    for _ in range(3):
        observer.gradients([tf.ones([1])], [kernel], None, "training")
        observer.state("step")
    states = [seen for seen in observer.observations if isinstance(seen, ObservedState)]
    assert [[float(measures[0]) for measures in seen.measures.values()] for seen in states] == [[3.0]]


def test_rows_that_are_lost_end_all_ranks(launch):
    launch.send(observation(1.0, rows=8.0))
    with pytest.raises(UserError):
        launch.rank.take(observation(1.0, rows=7.0))


def hang_up(launch):
    launch.witnesses[0].close()


def come_late(launch):
    """Do nothing: the patience of rank 0 ends."""


@pytest.mark.parametrize("goes", [hang_up, come_late])
def test_what_a_witness_has_compared_before_it_went_counts_and_no_later_training_is_divided(monkeypatch, goes):
    launch = Launch(monkeypatch, patience_s=3.0)
    launch.send(observation(1.0))
    assert launch.rank.judges_next()
    launch.rank.take(observation(1.0))
    goes(launch)
    launch.rank.take(observation(1.0))
    assert launch.rank.over
    assert codes(launch) == [NoteCode.WITNESS_AGREED, NoteCode.WITNESS_MISSED]
    assert launch.runtime.notes[0].values["steps"] == 1
    assert not launch.errors
    assert not launch.rank.judges_next()


@pytest.mark.parametrize("goes", [hang_up, come_late])
def test_a_launch_that_divides_before_its_witness_has_compared_anything_is_refused_when_that_goes(monkeypatch, goes):
    launch = Launch(monkeypatch, patience_s=1.0)
    assert launch.rank.judges_next()
    goes(launch)
    with pytest.raises(UserError):
        launch.rank.take(observation(1.0))
    (error,) = launch.errors
    assert says(error, "--unjudged", "-n 1", "test_witness.py")


@pytest.mark.parametrize("goes", [hang_up, come_late])
def test_a_training_by_keras_to_which_no_witness_has_come_is_not_divided(monkeypatch, goes):
    launch = Launch(monkeypatch, patience_s=1.0)
    goes(launch)
    launch.rank.meet()
    assert not launch.rank.judges_next()
    assert codes(launch) == [NoteCode.WITNESS_SAW_NOTHING, NoteCode.WITNESS_MISSED]
    assert not launch.errors


def test_rank_0_waits_for_the_witness_where_a_training_by_keras_begins(launch, pair):
    line, witness = pair
    witness.meet()
    launch.send(line.recv())
    launch.rank.meet()
    assert launch.rank.judges_next()
    assert not launch.rank.has_ended


def test_a_script_that_makes_other_steps_alone_is_refused(monkeypatch):
    launch = Launch(monkeypatch)
    launch.send(2)  # it asks for what rank 0 shares, at a place to which rank 0 does not come
    with pytest.raises(UserError):
        launch.rank.take(observation(1.0))
    (error,) = launch.errors
    assert says(error, "other steps", "--unjudged", "test_witness.py")


def test_gradients_of_other_shapes_are_refused(launch):
    launch.send(Observation("gradient", ("kernel",), np.ones((2, 5)), rows=8.0))
    with pytest.raises(UserError):
        launch.rank.take(observation(1.0))
    (error,) = launch.errors
    assert says(error, "other gradients", "--unjudged")


def test_what_magnifies_rounding_and_rows_of_each_rank_do_not_keep_later_trainings_whole(launch):
    launch.again = observation(1.5)
    launch.send(observation(1.0))
    launch.rank.take(observation(1.4))
    assert codes(launch)[-1] == NoteCode.ROUNDING_MAGNIFIED
    assert launch.rank.judges_next()


def test_where_every_rank_reads_rows_of_its_own_nothing_is_judged(launch):
    launch.runtime.own_rows.present = True
    launch.rank.take(observation(1.0))
    assert codes(launch) == [NoteCode.ROWS_OF_EACH_RANK]


@pytest.mark.parametrize(
    ("kind", "coarse", "agree"),
    [("gradient", False, False), ("gradient", True, True), ("number", False, True)],
)
def test_half_precision_and_numbers_may_differ_further(launch, kind, coarse, agree):
    launch.again = observation(1.0, kind=kind)
    launch.rank.coarse = coarse
    launch.send(observation(1.0, kind=kind))
    with contextlib.nullcontext() if agree else pytest.raises(UserError):
        launch.rank.take(observation(1.005, kind=kind))
    assert bool(launch.errors) == (not agree)


def test_values_are_shared_with_the_witness_until_it_ends(launch):
    assert launch.rank.share({"seed": 7}) == {"seed": 7}
    assert launch.witnesses[0].recv() == ({"seed": 7},)
    launch.rank.end()
    assert launch.witnesses[0].recv() is None
    launch.rank.share("later")
    assert not launch.witnesses[0].poll()


def test_the_witness_says_that_it_has_files_of_its_own(monkeypatch):
    launch = Launch(monkeypatch, patience_s=600.0)
    begin = time.monotonic()
    launch.send("ready")
    launch.rank.await_own_files()
    assert time.monotonic() - begin < 300.0


# The witness sends what it observes to rank 0, gets what rank 0 shares, and ends when rank 0 hangs up.


class Witness(WitnessProcess):
    """A witness whose end ends no process."""

    def __init__(self, line, ranks, steps):
        self.ends = []
        super().__init__(line, ranks, steps)

    def end(self, why=None):
        self.ends.append(why)

    def _end_after_rest(self):
        """Do not wait."""


@pytest.fixture
def pair():
    ours, theirs = Pipe()
    yield ours, Witness(theirs, ranks=3, steps=2)
    ours.close()


def test_it_stands_for_all_ranks(pair):
    _, witness = pair
    assert witness.is_witness
    assert witness.ranks == 3


def test_observations_reach_rank_0(pair):
    line, witness = pair
    witness.take(Observation("number", ("loss",), np.array([[1.0]])))
    assert line.recv().names == ("loss",)


def test_what_rank_0_shares_comes_in_its_order(pair):
    line, witness = pair
    line.send(("first",))
    line.send(("second",))
    assert [witness.share(None), witness.share(None)] == ["first", "second"]
    assert [line.recv(), line.recv()] == [1, 2]  # how often it has asked


def test_it_ends_when_rank_0_hangs_up(pair):
    line, witness = pair
    line.send(None)
    deadline = time.monotonic() + 60.0
    while not witness.ends and time.monotonic() < deadline:
        time.sleep(0.001)
    assert witness.ends == [None]


def test_it_is_idle_when_the_latest_training_needs_no_more_looks_though_an_earlier_one_was_short(pair):
    _, witness = pair

    def look(variable):
        witness.gradients([tf.constant([1.0])], [variable], training="training")
        return witness.is_idle

    short, long, next_one = (tf.Variable([1.0]) for _ in range(3))
    assert [look(short), look(long), look(long)] == [False, False, True]
    assert not witness.over  # if the short one goes on, it is looked at
    assert [look(next_one), look(next_one)] == [False, True]
    witness.meet()  # another begins, which may take long until its first step
    assert not witness.is_idle


def test_it_ends_when_the_script_reads_what_it_may_have_trained(pair):
    _, witness = pair
    witness.reads()  # nothing has been trained: the file is as it was
    assert witness.ends == []
    witness.gradients([tf.constant([1.0])], [tf.Variable([1.0])])
    witness.reads()
    assert witness.ends == [None]


def test_its_session_has_the_lowest_priority_between_two_trainings(pair, monkeypatch, tmp_path):
    monkeypatch.setattr(witness_process, "SESSION", tmp_path / "autogroup")
    monkeypatch.setattr(os, "setpriority", lambda *_: None)  # no test gets its own priority back
    _, witness = pair
    witness.begins()
    assert not (tmp_path / "autogroup").exists()
    witness.rest()
    assert (tmp_path / "autogroup").read_text() == "19"
    witness.begins()
    assert (tmp_path / "autogroup").read_text() == "0"


def test_the_environment_asks_for_other_roundings(monkeypatch):
    monkeypatch.setenv(NUDGES, "1")
    ours, theirs = Pipe()
    assert Witness(theirs, ranks=2, steps=2).nudges
    assert NUDGES not in os.environ
    ours.close()
