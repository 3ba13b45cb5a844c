"""Simulated sessions of a study on 1 and 2 ranks: every time of a launch has noise of sessions and of blocks."""

import math
from dataclasses import dataclass, replace

import numpy as np

from harness.analysis.useful_time import UsefulTime
from harness.regression.measurement import MeasuredLaunch, Measurement
from tests.labs.histories import make_measurement, make_summary

FACTORS = ("load balance", "serialisation efficiency", "transfer efficiency", "computation scaling")
LEVELS = {
    "load balance": 0.97,
    "serialisation efficiency": 0.95,
    "transfer efficiency": 0.93,
    "computation scaling": 0.96,
}
SHARES = {name: 1.0 if name == FACTORS[-1] else 3**-0.5 for name in FACTORS}
MINUTES_OF_DAY = 1440


@dataclass(frozen=True, kw_only=True)
class SimulatedMachine:
    """Standard deviations of logarithms: of the parallel efficiency and of computation scaling between sessions and
    between blocks, and of the step's time between sessions. Three factors share that of the parallel efficiency."""

    between: float
    within: float
    time_between: float = 0.1


def simulate_sessions(
    random: np.random.Generator,
    machine: SimulatedMachine,
    sessions: int,
    *,
    blocks: int = 3,
    losses: dict[str, float] | None = None,
    slower: float = 0.0,
    first_day: float = 0,
) -> Measurement:
    """Return `sessions` of so many `blocks`, a day apart. `losses` are the parts of factors that are gone.

    `slower` is what every step takes longer, on all layouts alike.
    """
    launches = []
    for session in range(sessions):
        day = first_day + session
        time = random.normal(0, machine.time_between)
        offsets = {name: random.normal(0, machine.between * SHARES[name]) for name in FACTORS}
        for block in range(blocks):
            repeat = session * blocks + block
            base_s = math.exp(time + random.normal(0, machine.within)) * (1 + slower)
            efficiency = {
                name: (1 - (losses or {}).get(name, 0.0))
                * LEVELS[name]
                * math.exp(offsets[name] + random.normal(0, machine.within * SHARES[name]))
                for name in FACTORS
            }
            start = MINUTES_OF_DAY * day + 2 * block
            alone = UsefulTime(whole=base_s, mean=base_s, longest=base_s, ideal=base_s)
            launches.append(_launch(1, repeat, start, alone))
            launches.append(_launch(2, repeat, start, _useful(base_s, efficiency)))
    return make_measurement(launches)


def _useful(base_s: float, efficiency: dict[str, float]) -> UsefulTime:
    mean = base_s / 2 / efficiency["computation scaling"]
    longest = mean / efficiency["load balance"]
    ideal = longest / efficiency["serialisation efficiency"]
    return UsefulTime(whole=ideal / efficiency["transfer efficiency"], mean=mean, longest=longest, ideal=ideal)


def _launch(ranks: int, repeat: int, minutes: float, useful: UsefulTime) -> MeasuredLaunch:
    return replace(make_summary(ranks, repeat, useful.whole, minutes=minutes), useful=useful)
