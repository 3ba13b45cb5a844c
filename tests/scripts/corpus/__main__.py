"""Run scripts of the corpus alone and on ranks, and say which print the same: ``python -m tests.scripts.corpus``.

On ranks each is a launch of its own, as ``harness run --batch global`` makes it. All take their TensorFlow from one
process that has imported it (`harness.sweep.fork_server`). What has run in ``--folder`` is not run again unless the script has changed;
``results.tsv`` there has a line for each script and number of ranks.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from harness.base.files import write_atomic
from tests.mpi.launch import run_ranks, warm_python
from tests.scripts.corpus import Script, programs, scripts

ROOT = Path(__file__).parents[3]
_LIMIT_S = 240
_GOOD = ("right", "refused", "told")
_KINDS = (*_GOOD, "wrong", "error")

Verdicts = dict[tuple[str, int], str]
"""What has been found of a script on so many ranks: a kind, a colon, and numbers or a sentence."""


def run(place: Path, script: Script, ranks: int) -> None:
    """Run `script` alone or on several `ranks` in folder `place`, where its output stays."""
    folder = place / "folder"  # the script's own: it may make files of any name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (place / "outcome").unlink(missing_ok=True)
    (folder / "script.py").write_text(script.source)
    python = sys.executable if script.forks else warm_python()
    try:
        if ranks == 1:
            words = [python, "script.py"]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            finished = subprocess.run(
                words, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, cwd=folder, check=False
            )
        else:
            switches = ("--batch", "global", "--threads", script.threads, "--hang-timeout", 60)
            words = ("-m", "harness.transparent", *switches, "script.py")
            finished = run_ranks(ranks, *words, timeout=_LIMIT_S, cwd=folder, python=python)
        said, complaints, outcome = finished.stdout, finished.stderr, finished.returncode
    except subprocess.TimeoutExpired:
        said, complaints, outcome = "", f"it has not ended after {_LIMIT_S} s", 124
    (place / "out").write_text(said)
    (place / "err").write_text(complaints)
    (place / "outcome").write_text(str(outcome))


def has_run(place: Path, script: Script) -> bool:
    """Tell whether the output in `place` is this script's."""
    return (place / "outcome").exists() and (place / "folder/script.py").read_text() == script.source


def divide_output(place: Path, chosen: Sequence[Script]) -> None:
    """Give each of the scripts that have run together in `place` a folder there with what it printed, to be judged."""
    printed = (place / "out").read_text()
    for script in chosen:
        folder = place / script.name
        folder.mkdir()
        _, _, behind = printed.partition(f"SCRIPT {script.name}\n")
        (folder / "out").write_text(behind.partition("SCRIPT ")[0])
        for name in ("err", "outcome"):
            shutil.copy(place / name, folder / name)


def judge(script: Script, alone: Path, ranks: Path) -> str:
    """Return the verdict, which begins with ``right:``, ``refused:``, ``told:``, ``wrong:`` or ``error:``."""
    if not script.refused and _outcome(alone) != 0:
        return "error: alone: " + _last(alone / "err")
    code = _outcome(ranks)
    if code != 0:
        said = [
            line for line in (ranks / "err").read_text().replace("\0", "").splitlines() if line.startswith("harness: ")
        ]
        sentence = next((line for line in said if script.refused and script.refused in line), "")
        if code in (1, 2) and sentence:
            return f"refused: {sentence.removeprefix('harness: ').removeprefix('rank 0: ')}"
        return f"error: exit code {code}: {said[-1] if said else _last(ranks / 'err')}"
    if script.refused:
        return "wrong: not refused"
    one, many = _numbers(alone / "out"), _numbers(ranks / "out")
    if len(one) != len(many) or not one:
        return f"wrong: {len(one)} numbers alone, {len(many)} on ranks"
    scale = np.maximum(np.abs(one), 0.05)
    apart = np.nan_to_num(np.abs(np.array(many) - one) / scale, nan=np.inf)
    worst = int(np.argmax(apart))
    if apart[worst] <= script.rtol:
        return f"right: {len(one)} numbers, at most {apart[worst]:.1e} apart"
    difference = f"number {worst} of {len(one)} is {one[worst]:.6g} alone, {many[worst]:.6g} on ranks"
    told = script.told and script.told in (ranks / "err").read_text()
    return f"{'told' if told else 'wrong'}: {difference}"


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


def compare(
    chosen: Mapping[str, Script], folder: Path, ranks: Sequence[int], *, jobs: int = 1, seconds: float = math.inf
) -> Verdicts:
    """Run the scripts of `chosen`, `jobs` at a time, alone and on each number of `ranks` below `folder`.

    Each runs alone once, for all numbers of ranks. After so many `seconds` no more are started.
    """
    warm_python()  # once, not by every worker
    end, verdicts, writing = time.monotonic() + seconds, Verdicts(), threading.Lock()

    def work(name: str) -> None:
        script, alone = chosen[name], folder / "alone" / name
        for place, count in [(alone, 1), *((folder / f"ranks-{count}" / name, count) for count in ranks)]:
            if not has_run(place, script):
                if time.monotonic() > end:
                    return
                run(place, script, count)
            if count > 1:
                with writing:
                    verdicts[name, count] = judge(script, alone, place)
                    save(folder / "results.tsv", verdicts)

    with ThreadPoolExecutor(jobs) as workers:
        list(workers.map(work, chosen))
    return verdicts


def save(file: Path, verdicts: Verdicts) -> None:
    """Write a line for each of `verdicts`: script, number of ranks, kind, and what there is to say, by tabulators."""
    lines = ["\t".join((name, str(count), *said.split(": ", 1))) for (name, count), said in sorted(verdicts.items())]
    write_atomic(file, "script\tranks\tverdict\tnumbers or sentence\n" + "".join(f"{line}\n" for line in lines))


def table(verdicts: Verdicts) -> str:
    """Return how many scripts there are of each kind, a line for each number of ranks."""
    counts = Counter((count, said.split(":")[0]) for (_, count), said in verdicts.items())
    rows = [("ranks", *_KINDS, "all")]
    for count in sorted({count for _, count in verdicts}):
        found = [counts[count, kind] for kind in _KINDS]
        rows.append((str(count), *map(str, [*found, sum(found)])))
    return "\n".join("".join(f"{cell:>9}" for cell in row) for row in rows)


def main() -> None:
    """Print a line for each script that is not right, and how many are."""
    parser = argparse.ArgumentParser(prog="python -m tests.scripts.corpus", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2", help="numbers of ranks, as 2 or 2,3 [default: 2]")
    parser.add_argument("--jobs", type=int, default=1, help="scripts that run at the same time [default: 1]")
    parser.add_argument("--programs", type=int, default=0, help="so many random nested programs besides [default: 0]")
    parser.add_argument("--folder", type=Path, help="where to run them; what has run there already is not run again")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no more scripts after so many")
    parser.add_argument("names", nargs="*", help="scripts, or beginnings of their names; all by default")
    options = parser.parse_args()
    ranks = [int(count) for count in options.ranks.split(",")]
    known = scripts() | programs(options.programs)
    chosen = {name: known[name] for name in known if not options.names or name.startswith(tuple(options.names))}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as spare:
        folder = options.folder or Path(spare)
        verdicts = compare(chosen, folder, ranks, jobs=options.jobs, seconds=options.seconds)
    for (name, count), verdict in sorted(verdicts.items()):
        if not verdict.startswith("right"):
            print(f"{name:32} {count} {verdict}")
    print(table(verdicts))
    print(
        f"{len(verdicts)} of {len(chosen) * len(ranks)} runs of {len(chosen)} scripts, {time.monotonic() - began:.0f} s"
    )
    sys.exit(not all(verdict.startswith(_GOOD) for verdict in verdicts.values()))


if __name__ == "__main__":
    main()
