"""Random training scripts from a grammar of habits: each prints on ranks what it prints alone, or is refused.

``python -m tests.unseen.scripts COUNT SEED FOLDER`` runs a campaign below FOLDER.
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from tests.scripts.corpus import Script, joined
from tests.scripts.corpus.__main__ import divide_output, has_run, judge, run

_RTOL = 1e-2
_LOOPS = ("compiled loop", "eager loop", "loop over arrays")
_TRAININGS = ("fit", "fit of a data set", "own train_step", "train_on_batch", *_LOOPS)
_IN_STEPS = ("tf.print", "py_function", "rows in the step")
_OUTSIDE = (
    *("float", "numpy", "item", "format", "len", "shape", "print", "eager sum", "predictions"),
    *("NumPy printed", "NumPy kept", "rows later", "errors kept", "hits kept", "loss added"),
)
_IN_FIT = ("history", "callback", "metric object", "predictions")
TOGETHER = 6
"""Scripts of one launch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Habits:
    """What is drawn for one script; words of the lists in `draw`."""

    seed: int
    training: str
    leaves: str
    decides: str
    loss: str
    layers: str
    randomness: str
    files: str
    exceptions: str
    code: str
    end: str
    optimizer: str
    trainings: int
    rows: int
    batch: int

    def __str__(self) -> str:
        """Return the habits in one line, for a log."""
        words = (self.training, self.leaves, self.decides, self.loss, self.layers, self.randomness, self.files)
        return f"{self.seed}: {', '.join((*words, self.exceptions, self.code, self.end, self.optimizer))}"


def draw(seed: int, *, ends: bool = True) -> Habits:
    """Return the habits of a seed. Without `ends` the script does not end its process by itself."""
    rng = np.random.default_rng(seed)

    def pick(*words: Any) -> Any:
        return words[int(rng.integers(len(words)))]

    training = pick(*_TRAININGS)
    leaves = pick(*((*_IN_STEPS, *_OUTSIDE) if training in _LOOPS else _IN_FIT))
    if training == "own train_step":  # which updates no metric
        leaves = "callback"
    if training == "train_on_batch":
        leaves = pick("float", "format", "print")
    if training == "own train_step" and rng.random() < 0.5:
        leaves = pick(*_IN_STEPS)
    return Habits(
        seed=seed,
        training=training,
        leaves=leaves,
        decides=pick("nothing", "rate by loss", "early stop", "best weights", "rate by epoch", "rate by count"),
        loss=pick("mean", "mean", "huber", "sum", "masked", "variance"),
        layers=pick("plain", "plain", "normalised", "dropout", "two inputs' product"),
        randomness=pick("none", "shuffled rows", "generator in Python", "noise", "seed again"),
        files=pick("none", "csv", "open log", "json", "renamed json", "npz", "sqlite", "weights"),
        exceptions=pick("none", "none", "trial may fail", "finally", "suppressed at the end"),
        code=pick("plain", "plain", "exec", "argparse", "class"),
        end=pick("last line", "last line", "sys.exit", "os._exit", "quit in a function") if ends else "last line",
        optimizer=pick("SGD", "Adam", "RMSprop", "Adagrad"),
        trainings=pick(1, 1, 2, 3),
        rows=pick(192, 240, 250),
        batch=pick(16, 24, 32),
    )


# The text of a script. Parts that are empty leave an empty line.

_HEAD = Template('''"""Random script $habits."""
import contextlib
import csv
import json
import os
import sqlite3
import sys
import argparse

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--rate", type=float, default=0.02)
options = parser.parse_args($arguments)
keras.utils.set_random_seed($seed)
rng = np.random.default_rng($seed)
ROWS, BATCH, EPOCHS, RATE = $rows, $batch, options.epochs, options.rate
x = rng.normal(size=(ROWS, 6)).astype("float32")
y = (x[:, :1] * x[:, 1:2] + np.sin(x[:, 2:3]) + 0.3 * (np.arange(ROWS)[:, None] % 7 < 2)).astype("float32")
LOG = os.path.abspath("log-$seed.txt")
seen, counted, history = [], tf.Variable(0, dtype=tf.int64, trainable=False), []
kept = []


def make_model():
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(12, activation="tanh")(inputs)
    $layers
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def loss_of(wanted, found):
    wanted = tf.cast(wanted, found.dtype)
    return $loss


def remember(value):
    seen.append(float(value))


class Keeper:
    """Keeps a number of each epoch in a file."""

    def __init__(self, trial):
        self.trial, self.numbers = trial, []
        $open_file

    def keep(self, epoch, value):
        self.numbers.append(value)
        $write_file

    def read(self):
        $read_file
''')

_LOSSES = {
    "mean": "tf.reduce_mean(tf.square(found - wanted))",
    "huber": "tf.reduce_mean(keras.losses.huber(wanted, found))",
    "sum": "0.02 * tf.reduce_sum(tf.square(found - wanted))",
    "masked": "tf.reduce_sum(tf.square(found - wanted) * tf.cast(wanted > 0, found.dtype))"
    " / (1.0 + tf.reduce_sum(tf.cast(wanted > 0, found.dtype)))",
    "variance": "tf.reduce_mean(tf.square(found - wanted)) + 0.1 * tf.math.reduce_variance(found)",
}
_LAYERS = {
    "plain": "",
    "normalised": "hidden = keras.layers.BatchNormalization()(hidden)",
    "dropout": "hidden = keras.layers.Dropout(0.1, seed=5)(hidden)",
    "two inputs' product": "hidden = keras.layers.Multiply()([hidden, keras.layers.Dense(12)(inputs)])",
}
_FILES = {
    "none": ("", "", "return self.numbers"),
    "csv": (
        "",
        'with open(f"{LOG}-{self.trial}.csv", "a", newline="") as file:\n'
        "            csv.writer(file).writerow([epoch, value])",
        'with open(f"{LOG}-{self.trial}.csv", newline="") as file:\n'
        "            return [float(row[1]) for row in csv.reader(file)]",
    ),
    "json": (
        "",
        'with open(f"{LOG}-{self.trial}.json", "w") as file:\n            json.dump(self.numbers, file)',
        'with open(f"{LOG}-{self.trial}.json") as file:\n            return json.load(file)',
    ),
    "open log": (
        'self.log = open(f"{LOG}-{trial}.log", "a")',
        "print(epoch, value, file=self.log, flush=True)",
        'return [float(line.split()[1]) for line in open(f"{LOG}-{self.trial}.log")]',
    ),
    "renamed json": (
        "",
        'with open(f"{LOG}-{self.trial}.new", "w") as file:\n            json.dump(self.numbers, file)\n'
        '        os.replace(f"{LOG}-{self.trial}.new", f"{LOG}-{self.trial}.json")',
        'with open(f"{LOG}-{self.trial}.json") as file:\n            return json.load(file)',
    ),
    "npz": (
        "",
        'np.savez(f"{LOG}-{self.trial}.npz", numbers=np.array(self.numbers))',
        'return np.load(f"{LOG}-{self.trial}.npz")["numbers"].tolist()',
    ),
    "sqlite": (
        'self.base = sqlite3.connect(f"{LOG}.db", timeout=30)\n'
        '        self.base.execute("create table if not exists epochs (trial integer, epoch integer, value real)")',
        'self.base.execute("insert into epochs values (?, ?, ?)", (self.trial, epoch, value))\n'
        "        self.base.commit()",
        'rows = self.base.execute("select value from epochs where trial = ? order by epoch", (self.trial,))\n'
        "        return [row[0] for row in rows]",
    ),
    "weights": (
        "",
        'model.save_weights(LOG + ".weights.h5")',
        'model.load_weights(LOG + ".weights.h5")\n        return self.numbers',
    ),
}

# What a training does at the end of an epoch, with `value` of that epoch: by Keras's callback or in a loop.
_DECIDES = {
    "nothing": "pass",
    "rate by loss": "if epoch and value > 0.8 * history[-1]:\n"
    "        optimizer.learning_rate.assign(optimizer.learning_rate * 0.5)",
    "early stop": "if epoch and value > 0.97 * history[-1]:\n        return True",
    "best weights": "if not history or value < min(history):\n        best[:] = model.get_weights()",
    "rate by epoch": "optimizer.learning_rate.assign(RATE / (1 + epoch))",
    "rate by count": "optimizer.learning_rate.assign(RATE / (1.0 + len(seen) / 40 + int(counted) / 500))",
}

_TRAIN = Template("""

def train(trial):
    global model, optimizer
    history.clear()
    best = []
    model = make_model()
    optimizer = keras.optimizers.$optimizer(RATE)
    keeper = Keeper(trial)
    order = np.arange(ROWS)
    $shuffle

    def after_epoch(epoch, value):
        keeper.keep(epoch, value)
        stop = decide(epoch, value, best)
        history.append(value)
        return bool(stop)

    $fail
$body
    if best:
        model.set_weights(best)
    found = model(tf.constant(x)).numpy()
    numbers = [*keeper.read(), float(found.mean()), float(np.square(found - y).mean())]
    return numbers + [sum(float(np.abs(weight).sum()) for weight in model.get_weights())]


def decide(epoch, value, best):
    $decides
""")

_STEP = """
    {decorator}
    def step(rows, wanted):
        {noise}
        with tf.GradientTape() as tape:
            loss = loss_of(wanted, model(rows, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        {inside}
        return loss
"""

_LOOP = """{step}
    {data}
    for epoch in range(EPOCHS):
        total, count = 0.0, 0
        kept.clear()
        for {batch}:
            {slices}
            loss = step(rows, wanted)
            {outside}
            count += 1
        if after_epoch(epoch, {value}):
            break
"""

_FIT = """
    class AfterEpoch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            {predicts}
            self.model.stop_training = after_epoch(epoch, {value})

    {own_step}
    model.compile(optimizer=optimizer, loss=loss_of, metrics={metrics})
    {data}
    model.fit({arguments}, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[AfterEpoch()])
"""

_OWN_STEP = """class Own(keras.Model):
        def train_step(self, data):
            rows, wanted = data
            {noise}
            with tf.GradientTape() as tape:
                loss = loss_of(wanted, self(rows, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            {inside}
            return {{"loss": loss}}

    model = Own(model.inputs, model.outputs)"""

_ON_BATCH = """
    model.compile(optimizer=optimizer, loss=loss_of)
    for epoch in range(EPOCHS):
        total, count = 0.0, 0
        for start in range(0, ROWS - BATCH + 1, BATCH):
            chosen = order[start:start + BATCH]
            loss = model.train_on_batch(x[chosen], y[chosen])
            {outside}
            count += 1
        if after_epoch(epoch, float(total / count)):
            break
"""

_INSIDE = {
    "tf.print": 'tf.print(loss, output_stream="file://" + LOG + ".steps")',
    "py_function": "tf.py_function(remember, [loss], [])",
    "rows in the step": "counted.assign_add(tf.shape(rows, out_type=tf.int64)[0])",
}
_TAKEN = {
    "numpy": "total += loss.numpy()",
    "item": "total += np.asarray(loss).item()",
    "format": 'total += float(f"{loss:.6f}")',
    "len": "total += float(loss); seen.extend([0.0] * (len(rows) // 8))",
    "shape": "total += float(loss); seen.extend([0.0] * (rows.shape[0] // 8))",
    "print": 'print("step", count, loss); total += float(loss)',
    "predictions": "total += float(loss); seen.append(float(model.predict(rows, verbose=0).sum()))",
    "NumPy printed": 'print("rows", np.sum(rows)); total += float(loss)',
    "NumPy kept": "total += float(loss); seen.append(float(np.sum(rows)))",
    "rows later": "total += float(loss); seen.extend([float(np.sum(rows))] if count == 4 else [])",
    "errors kept": "total += float(loss); kept.append(tf.reduce_mean(tf.abs(model(rows) - wanted)))",
    "hits kept": "total += float(loss); kept.append(tf.math.count_nonzero(model(rows) > wanted, dtype=tf.int32))",
    "loss added": "total += loss",
    "eager sum": "total += float(tf.reduce_sum(tf.abs(model(rows)))) / ROWS",
}
_AT_END = {
    "errors kept": "float(total / count + np.mean(kept))",
    "hits kept": "float(total / count + np.sum(kept) / ROWS)",
}
_NOISE = "rows = rows + tf.random.normal(tf.shape(rows), stddev=0.01, seed=3)"
_SHUFFLE = {
    "shuffled rows": "rng.shuffle(order)",
    "generator in Python": "order = np.array(sorted(order, key=lambda row: np.random.random()))",
    "seed again": "keras.utils.set_random_seed(100 + trial); np.random.shuffle(order)",
}

_RUNS = {
    "none": "for trial in range({count}):\n    results.append(train(trial))\n",
    "trial may fail": "for trial in range({count}):\n    try:\n        results.append(train(trial))\n"
    '    except Exception as error:\n        print("trial failed:", type(error).__name__)\n'
    "        results.append([float(trial)])\n",
    "finally": "for trial in range({count}):\n    try:\n        results.append(train(trial))\n"
    "    finally:\n        keras.backend.clear_session()\n",
    "suppressed at the end": "for trial in range({count}):\n    results.append(train(trial))\n"
    'with contextlib.suppress(ValueError):\n    raise ValueError("nothing")\n',
}
_ENDS = {
    "last line": "",
    "sys.exit": "sys.exit()\n",
    "os._exit": "sys.stdout.flush()\nos._exit(0)\n",
    "quit in a function": "def main():\n    sys.exit(0)\n\n\nmain()\n",
}


def _body(habits: Habits) -> str:
    """Return the lines of `train` that train."""
    outside = _TAKEN.get(habits.leaves, "total += float(loss)")
    inside = _INSIDE.get(habits.leaves, "")
    noise = _NOISE if habits.randomness == "noise" else ""
    tensors = "data = tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(BATCH)"
    if habits.training == "train_on_batch":
        return _ON_BATCH.format(outside=outside)
    if habits.training in _LOOPS:
        arrays = habits.training == "loop over arrays"
        step = _STEP.format(
            decorator="" if habits.training == "eager loop" else "@tf.function", noise=noise, inside=inside
        )
        return _LOOP.format(
            step=step,
            data="" if arrays else tensors,
            batch="start in range(0, ROWS - BATCH + 1, BATCH)" if arrays else "rows, wanted in data",
            slices="chosen = order[start:start + BATCH]; rows, wanted = tf.constant(x[chosen]), tf.constant(y[chosen])"
            if arrays
            else "pass",
            outside=outside,
            value=_AT_END.get(habits.leaves, "float(total / count)"),
        )
    own_step = _OWN_STEP.format(noise=noise, inside=inside) if habits.training == "own train_step" else ""
    of_set = habits.training == "fit of a data set"
    value = "float(self.model.metrics[0].result())" if habits.leaves == "metric object" else 'float(logs["loss"])'
    predicts = "seen.append(float(self.model.predict(x[:BATCH], verbose=0).sum()))"
    return _FIT.format(
        value=value,
        predicts=predicts if habits.leaves == "predictions" else "",
        own_step=own_step,
        metrics=None if own_step else ["mae"],  # a step of the script's own updates none
        data=tensors if of_set else "",
        arguments="data" if of_set else "x[order], y[order], batch_size=BATCH",
    )


def write(habits: Habits) -> str:
    """Return the script."""
    opened, written, read = _FILES[habits.files]
    head = _HEAD.substitute(
        habits=habits,
        arguments='["--epochs", "4"]' if habits.code == "argparse" else "[]",
        seed=habits.seed % 2**31,
        rows=habits.rows,
        batch=habits.batch,
        layers=_LAYERS[habits.layers],
        loss=_LOSSES[habits.loss],
        open_file=opened,
        write_file=written,
        read_file=read,
    )
    fails = 'if trial == 1:\n        raise ValueError("this trial cannot be built")'
    train = _TRAIN.substitute(
        optimizer=habits.optimizer,
        shuffle=_SHUFFLE.get(habits.randomness, ""),
        fail=fails if habits.exceptions == "trial may fail" else "",
        body=_body(habits),
        decides=_DECIDES[habits.decides],
    )
    if habits.code == "exec":
        train = f"\nexec(compile({train!r}, '<train>', 'exec'))\n"
    if habits.code == "class":
        train += "\n\nclass Experiment:\n    def __call__(self, trial):\n        return self.run(trial)\n"
        train += "\n    run = staticmethod(train)\n\n\ntrain = Experiment()\n"
    runs = _RUNS[habits.exceptions].format(count=habits.trainings)
    steps = 'LOG + ".steps"'
    lines = f"lines = len(open({steps}).readlines()) if os.path.exists({steps}) else 0\n"
    told = 'print("RESULT " + json.dumps([results, len(seen), sum(seen), int(counted), lines]), flush=True)\n'
    return f"{head}{train}\n\nresults = []\n{runs}{lines}{told}{_ENDS[habits.end]}"


def script_of(habits: Habits) -> Script:
    """Return the script with these habits, named by its seed."""
    forks = habits.end == "os._exit"  # a process of its own, which that ends
    return Script(name=f"unseen-{habits.seed}", source=write(habits), rtol=_RTOL, forks=forks)


# Outcomes.

_OURS = re.compile(r"^harness: (?:rank \d+: )?(.+)$", re.MULTILINE)


def outcome(script: Script, alone: Path, ranks: Path) -> str:
    """Return ``right``, ``refused: `` and the sentence, ``DIFFERENT: `` or ``STACK: `` and what there is to say.

    A script that fails alone is none: ``BAD: ``.
    """
    if (alone / "outcome").read_text() != "0":
        return "BAD: " + (alone / "err").read_text()[-300:]
    code = (ranks / "outcome").read_text()
    if code == "0":
        said = judge(script, alone, ranks)
        return "right" if said.startswith("right") else f"DIFFERENT: {said}"
    errors = (ranks / "err").read_text().replace("\0", "")
    sentences: list[str] = _OURS.findall(errors)
    if code == "2" and sentences and "Traceback" not in errors:
        return f"refused: {sentences[-1]}"
    return f"STACK: exit code {code}: {errors[-600:]}"


def _files(folder: Path, habits: Habits) -> list[str]:
    """Return the names of the files that a script has written into `folder`."""
    return sorted(path.name for path in folder.glob(f"log-{habits.seed}.*"))


def _with_files(said: str, habits: Habits, alone: Path, ranks: Path) -> str:
    """Return the outcome `said`, or that the script has written other files in folder `ranks` than in `alone`."""
    own, made = _files(alone, habits), _files(ranks, habits)
    return said if said != "right" or made == own else f"DIFFERENT: files {made} instead of {own}"


def run_each(chosen: Sequence[Habits], folder: Path) -> dict[Habits, str]:
    """Run each script alone and on two ranks in launches of their own, and return the outcomes."""
    outcomes = {}
    for habits in chosen:
        script = script_of(habits)
        alone, ranks = folder / script.name / "alone", folder / script.name / "ranks"
        for place, number in ((alone, 1), (ranks, 2)):
            if not (place / "outcome").exists() or not has_run(place, script):
                run(place, script, number)
        said = outcome(script, alone, ranks)
        outcomes[habits] = _with_files(said, habits, alone / "folder", ranks / "folder")
    return outcomes


def run_together(chosen: Sequence[Habits], folder: Path) -> dict[Habits, str]:
    """Run scripts in as few launches as there are refusals and one more, and return the outcomes."""
    waiting = {script_of(habits).name: habits for habits in chosen}
    alone = folder / "alone"
    outcomes = {}
    scripts = [script_of(habits) for habits in chosen]
    run(alone, joined(scripts), 1)
    divide_output(alone, scripts)
    while waiting:
        ranks = folder / f"ranks-{len(waiting)}"
        scripts = [script_of(habits) for habits in waiting.values()]
        run(ranks, joined(scripts), 2)
        divide_output(ranks, scripts)
        begun = re.findall(r"^SCRIPT (\S+)$", (ranks / "out").read_text(), re.MULTILINE)
        assert begun, (ranks / "err").read_text()[-2000:]
        for script in scripts[: len(begun)]:
            if script.name != begun[-1]:
                (ranks / script.name / "outcome").write_text("0")
            habits = waiting.pop(script.name)
            said = outcome(script, alone / script.name, ranks / script.name)
            outcomes[habits] = _with_files(said, habits, alone / "folder", ranks / "folder")
    return outcomes


def count(outcomes: Sequence[str]) -> Counter[str]:
    """Return how many outcomes there are of each kind."""
    return Counter(said.partition(":")[0] for said in outcomes)


def main() -> None:
    """Run a campaign: six scripts in a launch, or each in its own."""
    number, seed, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    habits = [draw(seed * 1_000_000 + place, ends=False) for place in range(number)]
    outcomes = {}
    for first in range(0, number, TOGETHER):
        outcomes |= run_together(habits[first : first + TOGETHER], folder / str(first))
    for drawn, said in outcomes.items():
        print(f"{drawn}\n    {said}")
    print(dict(count(list(outcomes.values()))))


if __name__ == "__main__":
    main()
