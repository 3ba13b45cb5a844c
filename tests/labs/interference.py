"""Blocks of launches in turns with planted interference: other work meets some rounds, and slows one rank in them."""

from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from harness.base.turns import turn_of_round
from harness.schema.sweep_folder import STEPS_FILE, SweepFolder
from tests.labs.factories import START
from tests.labs.planted import write_planted

STEP_S = 0.001
WIRE_S = 0.0001
TURN_STEPS = 20
COLD_STEPS = 3  # the first ones of a turn, which are not timed
TURNS = 60  # of a launch on two ranks: 3 epochs of 400 steps
ROUNDS = TURNS - turn_of_round(0) + 1


def write_block(study: Path, repeat: int, *, day: int = 0, met: range = range(0), slower_sums: float = 0.0) -> None:
    """Write a block of launches on 1 and 2 ranks. In the `met` rounds other work takes half of rank 1's core."""
    block = f"block-{repeat}"
    met_turns = [turn_of_round(number) for number in met]
    turns = np.arange(1, TURNS + 1).reshape(3, -1).repeat(TURN_STEPS, axis=1)  # [epochs, steps]
    epochs = iter(turns)

    def alone(rng: np.random.Generator, steps: int) -> np.ndarray:
        return STEP_S * rng.normal(1, 0.01, (steps, 1))

    def beside_work(rng: np.random.Generator, steps: int) -> np.ndarray:
        own = STEP_S * rng.normal(1, 0.01, (steps, 2))
        own[:, 1] *= np.where(np.isin(next(epochs), met_turns), 2.0, 1.0)
        return own

    when = START + timedelta(days=day, minutes=repeat)
    changes = {"block": block, "started": when, "ended": when + timedelta(seconds=20)}
    wire = WIRE_S * (1 + slower_sums)
    base = write_planted(study, 1, repeat, alone, **changes)
    launch = write_planted(study, 2, repeat, beside_work, wire=wire, **changes)
    steps_file = study / launch.point.folder / STEPS_FILE
    marks = np.where(np.arange(turns.shape[1]) % TURN_STEPS < COLD_STEPS, 0, turns).astype(np.int32)
    by_rank = [mark for epoch in marks for mark in (epoch, epoch)]  # rows of a rank after those of the other
    pq.write_table(pq.read_table(steps_file).append_column("turn", pa.array(np.concatenate(by_rank))), steps_file)

    rounds = []
    for number in range(ROUNDS):
        slowdown = 2.0 if number in met else 1.0
        rounds.append((number, base.point.folder, TURN_STEPS, TURN_STEPS * STEP_S, 1.0, "0"))
        seconds = TURN_STEPS * (slowdown * STEP_S + wire)
        rounds.append((number, launch.point.folder, TURN_STEPS, seconds, 1 / slowdown, "0;1"))
    SweepFolder(study).rounds.mkdir(exist_ok=True)
    frame = pd.DataFrame(rounds, columns=["round", "launch", "steps", "seconds", "cores", "bound"])
    frame.to_parquet(SweepFolder(study).block_turns(block))


def meet_all_recorded_rounds(study: Path, repeat: int) -> None:
    """Have other work meet all rounds in which steps of `repeat`'s launch on 2 ranks were recorded, and none later."""
    rounds = SweepFolder(study).block_turns(f"block-{repeat}")
    frame = pd.read_parquet(rounds)
    later = frame.assign(round=frame["round"] + ROUNDS)
    frame.loc[frame["bound"] == "0;1", "cores"] = 0.5
    pd.concat([frame, later]).to_parquet(rounds)
