"""Records of benches."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from harness.base.provenance import Machine
from harness.bench.bench_record import SCHEMA, BenchBlock, BenchRecord
from harness.bench.contenders import CONTENDERS
from harness.schema.claim import EXPERIMENTS

MACHINE = Machine(hostname="node1", cpu="Example", cores=2, memory_bytes=2**34, gpus=(), os="Linux 6", fingerprint="f")


def bench_block(number: int = 0, **steps: Sequence[float | None]) -> BenchBlock:
    """Return a block of mnist-dnn with the seconds of a step in each round, by contender (underscores for dashes)."""
    by_name = {name.replace("_", "-"): tuple(values) for name, values in steps.items()}
    return BenchBlock(
        workload="mnist-dnn", number=number, started=datetime(2026, 1, 5, tzinfo=UTC), wall_s=20.0, steps=by_name
    )


def bench_record(*blocks: BenchBlock, **changes: object) -> BenchRecord:
    """Return the record of `blocks`, changed as asked."""
    record = BenchRecord(
        schema=SCHEMA,
        started=datetime(2026, 1, 5, 12, 30, tzinfo=UTC),
        machine=MACHINE,
        versions={"harness": "0.1.0", "openmpi": ""},
        commit="0123456789abcdef",
        dirty=False,
        rows={"mnist-dnn": 12_800},
        contenders=tuple(CONTENDERS),
        left_out={},
        forced=False,
        blocks=blocks,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def make_bench() -> BenchRecord:
    """Return a bench of all workloads and all contenders in three blocks: the widest page that there is."""
    random = np.random.default_rng(1)
    blocks = []
    for place, workload in enumerate(EXPERIMENTS):
        for number in range(3):
            speed = 10.0 ** (place - 4)
            steps = {}
            losses = {}
            for name in CONTENDERS:
                slow = 1.0 if name.startswith("bare") else random.uniform(1.0, 1.6)
                steps[name] = tuple(map(float, speed * slow * random.lognormal(0, 0.03, 24)))
                losses[name] = float(random.uniform(0.1, 2.0))
            blocks.append(replace(bench_block(number), workload=workload, steps=steps, losses=losses))
    failed = replace(blocks[-1], failed={"mwms": "RuntimeError: a | b"}, details={"Horovod, 2 ranks": "Horovod 0.28.1"})
    rows = dict.fromkeys(EXPERIMENTS, 12_800)
    return bench_record(*blocks[:-1], failed, rows=rows, left_out={"ddp": "PyTorch DDP, 2 ranks: no PyTorch here"})
