"""A report of 10,000 launches: how long it takes and how much memory it needs.

``python -m tests.large --layouts 1000 --repeats 10 --epochs 100`` writes records of 1 to 16 ranks (1.5 GB) into a
temporary folder, builds their report and prints its seconds and peak memory.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice, product
from pathlib import Path

import numpy as np

from harness.schema.layout import Layout
from harness.schema.point import Point
from tests.labs.factories import make_run, make_workload, write_run, write_study

_ROWS = 60_000
_RANKS = 16


def write_sweep(sweep: Path, *, layouts: int, repeats: int, epochs: int) -> None:
    """Write `layouts` x `repeats` launches: every count of nodes up to 16 with 1, 2, 3 ... threads."""
    random = np.random.default_rng(0)
    workload = make_workload(epochs=epochs)
    write_study(sweep, epochs=epochs)
    for threads, nodes in islice(product(range(1, layouts), range(1, _RANKS + 1)), layouts):
        for repeat in range(repeats):
            point = Point(workload=workload, layout=Layout(nodes=nodes, threads=threads), repeat=repeat)
            seconds = (1 / nodes + 0.02) * random.lognormal(0, 0.03, (epochs, nodes))
            write_run(sweep, make_run(point, seconds=seconds.tolist(), rows=_ROWS))


def main() -> None:
    """Write, report, and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layouts", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sweep = Path(folder) / "large"
        write_sweep(sweep, layouts=options.layouts, repeats=options.repeats, epochs=options.epochs)
        begin = time.monotonic()
        command = (sys.executable, "-m", "harness", "report", str(sweep), "--reports", str(Path(folder) / "reports"))
        subprocess.run(command, check=True)
        seconds = time.monotonic() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    launches = options.layouts * options.repeats
    print(
        f"{launches} launches of up to {_RANKS} ranks and {options.epochs} epochs: {seconds:.1f} s, {peak / 1e9:.2f} GB"
    )


if __name__ == "__main__":
    main()
