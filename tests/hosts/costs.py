"""What sums between emulated hosts take: ``python -m tests.hosts.costs``; needs root and nothing beside it.

By every way at two rates of the network, and a CNN's step with its sums behind and beside the backward pass. Prints
two tables as Markdown, and draws the second (--figure). All hosts are this machine: what its cores or its switch
limit is none of the network's, so that the rate that one message reaches is printed too.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from harness.report.svg import draw, mark
from harness.schema.record import read_run
from tests.hosts.lab import Lab, hosts
from tests.mpi.launch import PROGRAMS

GBIT = 1e9 / 8  # bytes a second
NBYTES = (2_460_000, 13_099_000)  # of gradients: as in MNIST's CNN, and a fifth of them
WAYS = ("one leader", "MPI_Allreduce", "messages", "node-aware")


def told(lab: Lab, ranks_per_host: int, *words: object) -> Any:
    """Return what rank 0 printed behind RESULT."""
    finished = lab.run([*lab.launcher(ranks_per_host), sys.executable, *words], timeout=900)
    assert finished.returncode == 0, finished.stderr[-3000:]
    (line,) = (line for line in finished.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def sums(counts: Sequence[int], rates: Sequence[float], folder: Path, calls: int) -> None:
    """Print what a sum takes by every way, in milliseconds."""
    print(f"| hosts x ranks | Gbit/s | as one message has | bytes | {' | '.join(WAYS)} |")
    print("|---|---|---|---|---|---|---|---|")
    for count in counts:
        (folder / f"sums-{count}").mkdir()
        with hosts(count, folder / f"sums-{count}", kernel=True) as lab:
            for rate in rates:
                lab.limit(rate * GBIT)
                for nbytes in NBYTES:
                    found = told(lab, 2, PROGRAMS / "ways.py", nbytes, calls)
                    cells = [f"{1e3 * found[way]:.1f}" for way in WAYS]
                    reached = nbytes / found["one message"] / GBIT
                    print(f"| {count} x 2 | {rate:g} | {reached:.2f} | {nbytes:,} | {' | '.join(cells)} |", flush=True)


def overlap(rates: Sequence[float], folder: Path, rounds: int, figure: Path | None) -> None:
    """Print a step's milliseconds with the sums behind and beside the backward pass, and draw them as a PNG file."""
    found: dict[str, list[tuple[float, float]]] = {"0": [], "1": []}
    print("| Gbit/s | sums behind: ms a step | beside | beside / behind |")
    print("|---|---|---|---|")
    (folder / "overlap").mkdir()
    with hosts(2, folder / "overlap", kernel=True) as lab:
        for rate in rates:
            lab.limit(rate * GBIT)
            steps: dict[str, list[float]] = {"0": [], "1": []}
            for number in range(rounds):
                for choice in ("01", "10")[number % 2]:
                    record = folder / f"overlap-{rate}-{number}-{choice}"
                    words = ("--dataset", "mnist", "--model", "cnn", "--data-kind", "synthetic", "--samples", "2560")
                    options = ("--epochs", "3", "--threads", "2", "--record", record)
                    command = [*lab.launcher(1), sys.executable, "-m", "harness", "train", *words, *options]
                    finished = lab.run(command, timeout=900, HARNESS_OVERLAP=choice)
                    assert finished.returncode == 0, finished.stderr[-3000:]
                    steps[choice].append(_step(record))
                    found[choice].append((rate, 1e3 * steps[choice][-1]))
            ratios = [beside / behind for behind, beside in zip(steps["0"], steps["1"], strict=True)]
            cells = [f"{1e3 * median(steps[choice]):.1f}" for choice in "01"]
            cells.append(f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
            print(f"| {rate:g} | {' | '.join(cells)} |", flush=True)

    def paint(axes: Axes) -> None:
        for number, (choice, name) in enumerate((("0", "behind the backward pass"), ("1", "beside it, in pieces"))):
            look = mark(number)
            axes.plot(*zip(*found[choice], strict=True), look.marker, color=look.colour, fillstyle="none", label=name)
            middles = [median(ms for at, ms in found[choice] if at == rate) for rate in rates]
            axes.plot(rates, middles, color=look.colour)
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("Network between two hosts, Gbit/s")
        axes.set_ylabel("Step of MNIST's CNN, ms")

    if figure:
        figure.write_bytes(draw("overlap", "Sums behind and beside the backward pass", paint).draw().file("png"))


def _step(record: Path) -> float:
    """Return the seconds of a step, by the epochs behind the first."""
    epochs = read_run(record).epochs[1:]
    return median(max(epoch.seconds) / epoch.steps for epoch in epochs)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.costs", description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", default="2,4", help="numbers of hosts, of 2 ranks each [default: 2,4]")
    parser.add_argument("--rates", default="1,10", help="Gbit/s [default: 1,10]")
    parser.add_argument("--overlap-rates", default="0.5,1,2.5", help="Gbit/s [default: 0.5,1,2.5]")
    parser.add_argument("--calls", type=int, default=12, help="sums of each kind [default: 12]")
    parser.add_argument("--rounds", type=int, default=5, help="launches of each kind [default: 5]")
    parser.add_argument("--figure", type=Path, help="PNG file for the steps")
    options = parser.parse_args()
    numbers = {
        name: [float(rate) for rate in getattr(options, name).split(",") if rate] for name in ("rates", "overlap_rates")
    }
    with tempfile.TemporaryDirectory() as folder:
        overlap(numbers["overlap_rates"], Path(folder), options.rounds, options.figure)
        sums([int(count) for count in options.hosts.split(",") if count], numbers["rates"], Path(folder), options.calls)


if __name__ == "__main__":
    main()
