"""Run scripts of the corpus alone and on ranks, and say which print the same: ``python -m tests.scripts.corpus``.

On ranks each is a launch of its own, as ``harness run --batch global`` makes it. All take their TensorFlow from one
process that has imported it (`warm`).
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.mpi.launch import run_ranks
from tests.scripts.corpus import Script, scripts

ROOT = Path(__file__).parents[3]
_WARM = Path(__file__).with_name("warm.py")
_LIMIT_S = 240


@contextlib.contextmanager
def warm() -> Iterator[tuple[object, ...]]:
    """Yield the words that run a program in a Python with TensorFlow imported, behind the interpreter's name."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        address = Path(folder) / "socket"
        command = [sys.executable, _WARM, "--serve", address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as server:
            while not address.exists() and server.poll() is None:
                time.sleep(0.1)
            try:
                yield "-S", _WARM, address
            finally:
                server.stdin.close()


def run(place: Path, script: Script, ranks: int, python: Sequence[object]) -> None:
    """Run `script` alone or on several `ranks` in folder `place`, where its output stays, unless it has run there."""
    if (place / "outcome").exists():
        return
    place.mkdir(parents=True, exist_ok=True)
    (place / "script.py").write_text(script.source)
    try:
        if ranks == 1:
            words = [sys.executable, *map(str, python), "script.py"]
            finished = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, cwd=place, check=False)
        else:
            switches = ("--batch", "global", "--threads", 1, "--hang-timeout", 60)
            words = (*python, "-m", "harness.transparent", *switches, "script.py")
            finished = run_ranks(ranks, *words, timeout=_LIMIT_S, cwd=place, PYTHONHASHSEED="0")
        said, complaints, outcome = finished.stdout, finished.stderr, finished.returncode
    except subprocess.TimeoutExpired:
        said, complaints, outcome = "", f"it has not ended after {_LIMIT_S} s", 124
    (place / "out").write_text(said)
    (place / "err").write_text(complaints)
    (place / "outcome").write_text(str(outcome))


def judge(script: Script, alone: Path, ranks: Path) -> str:
    """Return ``right``, ``refused: ...``, ``told: ...``, or what is the matter: ``wrong: ...`` or ``failed: ...``."""
    if _outcome(alone) != 0 and not script.refused:
        return "failed alone: " + _last(alone / "err")
    code = _outcome(ranks)
    if code != 0:
        said = [
            line for line in (ranks / "err").read_text().replace("\0", "").splitlines() if line.startswith("harness: ")
        ]
        sentence = next((line for line in said if script.refused and script.refused in line), "")
        if code in (1, 2) and sentence:
            return f"refused: {sentence.removeprefix('harness: ').removeprefix('rank 0: ')}"
        return f"failed ({code}): {said[-1] if said else _last(ranks / 'err')}"
    if script.refused:
        return "wrong: not refused"
    one, many = _numbers(alone / "out"), _numbers(ranks / "out")
    if len(one) != len(many) or not one:
        return f"wrong: {len(one)} numbers alone, {len(many)} on ranks"
    scale = np.maximum(np.abs(one), 0.05)
    apart = np.abs(np.array(many) - one) / scale
    worst = int(np.argmax(np.nan_to_num(apart, nan=np.inf)))
    if not apart[worst] <= script.rtol:
        if script.told and script.told in (ranks / "err").read_text():
            return f"told: number {worst} is {one[worst]:.6g} alone, {many[worst]:.6g} on ranks"
        return f"wrong: number {worst} is {one[worst]:.6g} alone, {many[worst]:.6g} on ranks"
    return "right"


def _outcome(place: Path) -> int:
    return int((place / "outcome").read_text())


def _last(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
    return lines[-1] if lines else "no output"


def _numbers(file: Path) -> list[float]:
    found: list[float] = []

    def take(value: object) -> None:
        if isinstance(value, dict):
            value = [value[key] for key in sorted(value)]
        if isinstance(value, list):
            for part in value:
                take(part)
        else:
            found.append(float(value))  # type: ignore[arg-type]

    for line in file.read_text().splitlines():
        if line.startswith("RESULT "):
            take(json.loads(line[7:]))
    return found


def compare(names: Sequence[str], folder: Path, ranks: int, seconds: float = math.inf) -> dict[str, str]:
    """Run the scripts `names` alone and on `ranks` ranks below `folder`; return the verdict of each that has run.

    After so many `seconds` no more are started.
    """
    known, end, places = scripts(), time.monotonic() + seconds, (folder / "alone", folder / f"ranks-{ranks}")
    with warm() as python:
        for name in names:
            for place, count in zip(places, (1, ranks), strict=True):
                if time.monotonic() < end:
                    run(place / name, known[name], count, python)
    ran = [name for name in names if all((place / name / "outcome").exists() for place in places)]
    return {name: judge(known[name], *(place / name for place in places)) for name in ran}


def main() -> None:
    """Print a line for each script that is not right, and how many are."""
    parser = argparse.ArgumentParser(prog="python -m tests.scripts.corpus", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to run them; what has run there already is not run again")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no more scripts after so many")
    parser.add_argument("names", nargs="*", help="scripts, or beginnings of their names; all by default")
    options = parser.parse_args()
    chosen = [name for name in scripts() if not options.names or name.startswith(tuple(options.names))]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as spare:
        verdicts = compare(chosen, options.folder or Path(spare), options.ranks, options.seconds)
    for name, verdict in verdicts.items():
        if verdict != "right":
            print(f"{name:32} {verdict}")
    counts = Counter(verdict.split(":")[0].split(" (")[0] for verdict in verdicts.values())
    print(
        f"{len(verdicts)} of {len(chosen)} scripts, alone and on {options.ranks} ranks, {time.monotonic() - began:.0f} s: {dict(counts)}"
    )
    sys.exit(not set(counts) <= {"right", "refused", "told"})


if __name__ == "__main__":
    main()
