"""Simulated histories: launches of one commit after another with the noise of real A/A launches, and worse."""

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.schema.layout import Layout
from harness.schema.measurement import Launch, Measurement, Software
from tests.factories import START, make_provenance, make_workload

AA_FILE = Path(__file__).parent / "data" / "aa-mnist-dnn.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Weather:
    """The noise of one machine, in parts of a launch's time.

    `rests` [launches] are what real A/A launches differ from their median (logarithms), drawn again with the
    factor `scale`. `drift` is the deviation and `memory` the correlation of a disturbance that all launches
    share as time goes by; a new session starts it anew. A burst of other load begins at a launch with the
    chance `burst`, lasts up to three launches and costs `burst_size` on average (exponentially distributed).
    """

    rests: NDArray[np.float64]
    scale: float = 1.0
    drift: float = 0.01
    memory: float = 0.8
    burst: float = 0.02
    burst_size: float = 0.08


def real_rests() -> NDArray[np.float64]:
    """Return what the real A/A launches differ from the median of all of their rank count (logarithms)."""
    found: dict[str, list[float]] = {}
    for session in json.loads(AA_FILE.read_text())["sessions"]:
        for ranks, seconds in session["seconds"].items():
            found.setdefault(ranks, []).extend(seconds)
    return np.concatenate([np.log(seconds) - np.median(np.log(seconds)) for seconds in found.values()])


def simulate(
    random: np.random.Generator,
    weather: Weather,
    *,
    blocks: int,
    ranks: tuple[int, ...] = (1, 2),
    loss: float = 0.0,
    commit: str = "a" * 40,
    day: int = 0,
) -> Measurement:
    """Return a session of `blocks` interleaved launches; `loss` is the part of the efficiency that is gone."""
    total = blocks * len(ranks)
    disturbance = _drift(random, weather, total) + _bursts(random, weather, total)
    disturbance += weather.scale * random.choice(weather.rests, total)
    launches = []
    for number in range(total):
        block, place = divmod(number, len(ranks))
        count = ranks[(place + block) % len(ranks)]
        seconds = 0.64 / count**0.8 / (1.0 if count == ranks[0] else 1 - loss) * np.exp(disturbance[number])
        launches.append(make_summary(count, block, float(seconds), minutes=1440 * day + number))
    return make_measurement(launches, commit=commit)


def make_summary(ranks: int, repeat: int, seconds: float, *, minutes: float = 0, sync: float = 0.1) -> Launch:
    """Return one launch of `seconds` an epoch that started `minutes` after the factories' start."""
    waiting = 0.0 if ranks == 1 else seconds * sync / 2
    return Launch(
        layout=Layout(nodes=ranks),
        repeat=repeat,
        started=START + timedelta(minutes=minutes),
        rows=60000,
        seconds=seconds,
        skew_seconds=waiting,
        wire_seconds=waiting,
        test_accuracy=0.97,
    )


def make_measurement(launches: list[Launch], *, commit: str = "a" * 40, hostname: str = "node1") -> Measurement:
    """Return the measurement of `launches` of MNIST-DNN."""
    provenance = make_provenance(commit=commit, hostname=hostname)
    return Measurement(
        label=commit[:7],
        workload=make_workload(),
        scaling="strong",
        data_id="real-0123",
        data_kind="real",
        machine=provenance.machine,
        software=Software(**{name: getattr(provenance, name) for name in Software.__slots__}),
        reductions=("native",),
        launches=tuple(launches),
    )


def _drift(random: np.random.Generator, weather: Weather, total: int) -> NDArray[np.float64]:
    fresh = random.standard_normal(total) * weather.drift
    steps = np.empty(total)
    steps[0] = fresh[0]
    for number in range(1, total):
        steps[number] = weather.memory * steps[number - 1] + (1 - weather.memory**2) ** 0.5 * fresh[number]
    return steps


def _bursts(random: np.random.Generator, weather: Weather, total: int) -> NDArray[np.float64]:
    cost = np.zeros(total)
    for start in np.flatnonzero(random.random(total) < weather.burst):
        cost[start : start + random.integers(1, 4)] += random.exponential(weather.burst_size)
    return cost
