"""Launch the same short run again and again: every launch must end in time, with the same weights.

``python -m tests.mpi.stress --ranks 2 --launches 200`` and ``--ranks 8 --launches 50`` (more ranks than cores: each
waits for others that have no core). Prints one line per ten launches; exit code 1 at the first hang or other hash.
"""

import argparse
import re
import subprocess
import sys
import time

from tests.mpi.launch import run_ranks

_OPTIONS = ("--dataset", "adult", "--data-kind", "synthetic", "--samples", "1280", "--epochs", "1")
_HASH = re.compile(r"replicas identical: yes \(sha256 ([0-9a-f]+)\)")


def launch(ranks: int, limit_s: float, expected: str) -> str:
    """Return the weight hash of one launch; `expected` is the one it must have, or empty.

    Raises:
        AssertionError: it hung, failed, or trained other weights.
    """
    batch = ("--global-batch", str(16 * ranks))
    try:
        finished = run_ranks(ranks, "-m", "harness", "train", *_OPTIONS, *batch, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"hang: not done within {limit_s:.0f} s") from error
    found = _HASH.search(finished.stdout)
    assert finished.returncode == 0 and found, f"failed with {finished.returncode}: {finished.stderr[-2000:]}"
    assert expected in ("", found[1]), f"wrong hash {found[1]}, not {expected}"
    return found[1]


def main() -> None:
    """Launch as often as asked and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--limit", type=float, default=120.0, help="Seconds after which a launch counts as hung.")
    parser.add_argument("--expect", default="", help="The weights' hash, of an earlier piece of the same test.")
    options = parser.parse_args()
    begin, known = time.monotonic(), options.expect
    for number in range(1, options.launches + 1):
        try:
            known = launch(options.ranks, options.limit, known)
        except AssertionError as error:
            sys.exit(f"launch {number} of {options.launches} with {options.ranks} ranks: {error}")
        if number % 10 == 0 or number == options.launches:
            seconds = time.monotonic() - begin
            print(f"{number} launches of {options.ranks} ranks: no hang, one hash {known}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
