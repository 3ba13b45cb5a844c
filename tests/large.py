"""Status and report of 10,000 launches: how long they take and how much memory they need.

``python -m tests.large --layouts 1000 --repeats 10 --epochs 100`` writes records of 1 to 16 ranks (1.5 GB) into a
temporary folder, asks for their status, builds their report and prints the seconds and the peak memory of both.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import numpy as np

from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import encode
from harness.schema.sweep import Study, Sweep
from harness.schema.sweep_folder import STEPS_FILE, SweepFolder
from tests.labs.factories import make_run, make_workload, write_run

_ROWS = 60_000
_RANKS = 16


def write_sweep(sweep: Path, *, layouts: int, repeats: int, epochs: int) -> None:
    """Write `layouts` x `repeats` launches: every count of nodes up to 16 with 1, 2, 3 ... threads."""
    random = np.random.default_rng(0)
    workload = make_workload(epochs=epochs)
    counts = islice(product(range(1, layouts), range(1, _RANKS + 1)), layouts)
    asked = tuple(Layout(nodes=nodes, threads=threads) for threads, nodes in counts)
    study = Study(schema=1, sweep=Sweep(workload=workload, layouts=asked, repeats=repeats), skipped=())
    sweep.mkdir(parents=True)
    SweepFolder(sweep).study.write_bytes(encode(study))
    steps_sha256 = ""  # all have the same table of steps
    for layout in asked:
        for repeat in range(repeats):
            point = Point(workload=workload, layout=layout, repeat=repeat)
            nodes = layout.nodes
            seconds = (1 / nodes + 0.02) * random.lognormal(0, 0.03, (epochs, nodes))
            run = make_run(point, seconds=seconds.tolist(), rows=_ROWS)
            folder = write_run(sweep, replace(run, steps_sha256=steps_sha256))
            steps_sha256 = hashlib.sha256((folder / STEPS_FILE).read_bytes()).hexdigest()


def run(command: str, folder: Path, *options: str) -> str:
    """Run a `command` of the harness on the sweep in `folder`; return its seconds and its peak memory in words."""
    words = (sys.executable, "-m", "harness", command, "large", "--results", str(folder / "results"), *options)
    begin = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, code, usage = os.wait4(process.pid, 0)
    if code:
        raise SystemExit(f"{command} failed")
    return f"{time.monotonic() - begin:.1f} s, {usage.ru_maxrss * 1024 / 1e9:.2f} GB"


def main() -> None:
    """Write, report, and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sweep = folder / "results" / "large"
        write_sweep(sweep, layouts=options.layouts, repeats=options.repeats, epochs=options.epochs)
        launches = options.layouts * options.repeats
        print(f"{launches} launches of up to {_RANKS} ranks and {options.epochs} epochs")
        print(f"status: {run('status', folder)}")
        print(f"report: {run('report', folder, '--reports', str(folder / 'reports'))}")


if __name__ == "__main__":
    main()
