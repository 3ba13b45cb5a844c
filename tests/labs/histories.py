"""Simulated histories: launches of one commit after another with the noise of real A/A launches, and worse."""

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.regression.measurement import MeasuredLaunch, Measurement, software
from harness.schema.layout import Layout
from tests.labs.factories import START, make_provenance, make_run, make_workload

AA_FILE = Path(__file__).parents[1] / "data" / "aa-mnist-dnn.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineNoise:
    """The noise of one machine, in parts of a launch's time.

    `rests` [launches] are what real A/A launches differ from their median (logarithms), drawn again with the
    factor `scale`. `drift` is the deviation and `memory` the correlation of a disturbance that all launches
    share as time goes by; a new session starts it anew. A burst of other load begins at a launch with the
    chance `burst`, lasts up to three launches and costs `burst_size` on average (exponentially distributed).

    Between sessions: `offset` is the deviation of what a whole session is slower by, `own_offset` of what each of
    its layouts is slower by. A machine with two speeds `modes` apart keeps its own from one launch to the next
    with the chance `sticky`.
    """

    rests: NDArray[np.float64]
    scale: float = 1.0
    drift: float = 0.01
    memory: float = 0.8
    burst: float = 0.02
    burst_size: float = 0.08
    offset: float = 0.0
    own_offset: float = 0.0
    modes: float = 0.0
    sticky: float = 0.95


def real_rests() -> NDArray[np.float64]:
    """Return what the real A/A launches differ from the median of all of their rank count (logarithms)."""
    found: dict[str, list[float]] = {}
    for session in json.loads(AA_FILE.read_text())["sessions"]:
        for ranks, seconds in session["seconds"].items():
            found.setdefault(ranks, []).extend(seconds)
    return np.concatenate([np.log(seconds) - np.median(np.log(seconds)) for seconds in found.values()])


def simulate(
    random: np.random.Generator,
    machine: MachineNoise,
    *,
    blocks: int,
    ranks: tuple[int, ...] = (1, 2),
    loss: float = 0.0,
    commit: str = "a" * 40,
    day: int = 0,
) -> Measurement:
    """Return a session of `blocks` interleaved launches; `loss` is the part of the efficiency that is gone."""
    order = [(block, ranks[(place + block) % len(ranks)]) for block in range(blocks) for place in range(len(ranks))]
    slow = _disturbance(random, machine, [count for _, count in order])
    seconds = [_seconds(count, ranks[0], loss) * np.exp(more) for (_, count), more in zip(order, slow, strict=True)]
    launches = [
        make_summary(count, block, float(time), minutes=1440 * day + number)
        for number, ((block, count), time) in enumerate(zip(order, seconds, strict=True))
    ]
    return make_measurement(launches, commit=commit)


def _seconds(ranks: int, base: int, loss: float) -> float:
    return 0.64 / ranks**0.8 / (1.0 if ranks == base else 1 - loss)


def _disturbance(random: np.random.Generator, machine: MachineNoise, ranks: list[int]) -> NDArray[np.float64]:
    """Return by how much (logarithms) each launch of a session, of so many `ranks`, is slower than usual."""
    total = len(ranks)
    found = _drift(random, machine, total) + _bursts(random, machine, total)
    found += machine.scale * random.choice(machine.rests, total)
    own = dict(zip(sorted(set(ranks)), random.normal(0, machine.own_offset, len(set(ranks))), strict=True))
    found += random.normal(0, machine.offset) + np.array([own[count] for count in ranks])
    if machine.modes:
        changes = np.cumsum(random.random(total) > machine.sticky) + random.integers(2)
        found += machine.modes * (changes % 2)
    return found


def make_summary(ranks: int, repeat: int, seconds: float, *, minutes: float = 0) -> MeasuredLaunch:
    """Return one launch of `seconds` an epoch that started `minutes` after the factories' start."""
    return MeasuredLaunch(
        layout=Layout(nodes=ranks),
        repeat=repeat,
        started=START + timedelta(minutes=minutes),
        ended=START + timedelta(minutes=minutes, seconds=50),
        rows=60000,
        steps=100,
        seconds=seconds,
        test_accuracy=0.97,
    )


def make_measurement(
    launches: list[MeasuredLaunch], *, commit: str = "a" * 40, hostname: str = "node1", dirty: bool = False
) -> Measurement:
    """Return the measurement of `launches` of MNIST-DNN."""
    provenance = make_provenance(commit=commit, hostname=hostname, dirty=dirty)
    return Measurement(
        label=commit[:7],
        workload=make_workload(),
        scaling="strong",
        data_id="real-0123",
        data_kind="real",
        machine=provenance.machine,
        software=software(make_run(provenance=provenance)),
        reductions=("native",),
        launches=tuple(launches),
    )


def _drift(random: np.random.Generator, machine: MachineNoise, total: int) -> NDArray[np.float64]:
    fresh = random.standard_normal(total) * machine.drift
    steps = np.empty(total)
    steps[0] = fresh[0]
    for number in range(1, total):
        steps[number] = machine.memory * steps[number - 1] + (1 - machine.memory**2) ** 0.5 * fresh[number]
    return steps


def _bursts(random: np.random.Generator, machine: MachineNoise, total: int) -> NDArray[np.float64]:
    cost = np.zeros(total)
    for start in np.flatnonzero(random.random(total) < machine.burst):
        cost[start : start + random.integers(1, 4)] += random.exponential(machine.burst_size)
    return cost
