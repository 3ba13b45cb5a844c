"""Run scripts of the corpus alone and on ranks, and say which print the same: ``python -m tests.scripts.corpus``.

Alone, a process that has imported TensorFlow forks one child for each script; on ranks, each is a launch of its own, as
``harness run --batch global`` makes it.
"""

import argparse
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.mpi.launch import run_ranks
from tests.scripts.corpus import Script, scripts

ROOT = Path(__file__).parents[3]
_LIMIT_S = 120


def serve(folder: Path, names: Sequence[str]) -> None:
    """Run each script alone in a child of its own, below `folder`, where its output stays; skip those with an outcome."""
    import tensorflow as tf

    tf.constant  # noqa: B018 - it loads lazily
    known = scripts()
    for name in names:
        place = folder / name
        if (place / "outcome-0").exists():
            continue
        place.mkdir(parents=True, exist_ok=True)
        (place / "script.py").write_text(known[name].source)
        child = os.fork()
        if child == 0:
            signal.alarm(_LIMIT_S)
            os._exit(_run(place))
        status = os.waitpid(child, 0)[1]
        (place / "outcome-0").write_text(str(os.waitstatus_to_exitcode(status)))


def _run(place: Path) -> int:
    os.chdir(place)
    for stream, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{kind}-0", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
    try:
        runpy.run_path(str(place / "script.py"), run_name="__main__")
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        import traceback

        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def launch(place: Path, script: Script, ranks: int) -> None:
    """Run `script` on `ranks` ranks in folder `place`, where its output stays, unless it has an outcome there."""
    if (place / "outcome-0").exists():
        return
    place.mkdir(parents=True, exist_ok=True)
    (place / "script.py").write_text(script.source)
    words = ("-m", "harness.transparent", "--batch", "global", "--threads", 1, "--hang-timeout", 60, "script.py")
    try:
        finished = run_ranks(ranks, *words, timeout=3 * _LIMIT_S, cwd=place, PYTHONHASHSEED="0")
        said, complaints, outcome = finished.stdout, finished.stderr, finished.returncode
    except subprocess.TimeoutExpired:
        said, complaints, outcome = "", f"it has not ended after {3 * _LIMIT_S} s", 124
    (place / "out-0").write_text(said)
    (place / "err-0").write_text(complaints)
    (place / "outcome-0").write_text(str(outcome))


def judge(script: Script, alone: Path, ranks: Path) -> str:
    """Return ``right``, ``refused``, or what is the matter: ``wrong: ...`` or ``failed: ...``."""
    if _outcome(alone) != 0 and not script.refused:
        return "failed alone: " + _last(alone / "err-0")
    code = _outcome(ranks)
    if code != 0:
        said = [line for file in sorted(ranks.glob("err-*")) for line in file.read_text(errors="replace").splitlines()
                if line.startswith("harness: ")]  # fmt: skip
        if any(script.refused and script.refused in line for line in said):
            return "refused"
        return f"failed ({code}): {said[-1] if said else _last(ranks / 'err-0')}"
    if script.refused:
        return "wrong: not refused"
    one, many = _numbers(alone / "out-0"), _numbers(ranks / "out-0")
    if len(one) != len(many) or not one:
        return f"wrong: {len(one)} numbers alone, {len(many)} on ranks"
    scale = np.maximum(np.abs(one), 0.05)
    apart = np.abs(np.array(many) - one) / scale
    worst = int(np.argmax(np.nan_to_num(apart, nan=np.inf)))
    if not apart[worst] <= script.rtol:
        return f"wrong: number {worst} is {one[worst]:.6g} alone, {many[worst]:.6g} on ranks"
    return "right"


def _outcome(place: Path) -> int | None:
    file = place / "outcome-0"
    return int(file.read_text()) if file.exists() else None


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


def compare(names: Sequence[str], folder: Path, ranks: int) -> dict[str, str]:
    """Run the scripts `names` alone and on `ranks` ranks below `folder`; return each one's verdict."""
    command = [sys.executable, "-m", "tests.scripts.corpus", "--serve", folder / "alone", *names]
    subprocess.run(command, check=True, cwd=ROOT)
    known = scripts()
    for name in names:
        launch(folder / f"ranks-{ranks}" / name, known[name], ranks)
    return {name: judge(known[name], folder / "alone" / name, folder / f"ranks-{ranks}" / name) for name in names}


def main() -> None:
    """Print a line for each script that is not right, and how many are."""
    parser = argparse.ArgumentParser(prog="python -m tests.scripts.corpus", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to run them; what has run there already is not run again")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="scripts, or beginnings of their names; all by default")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.names)
        return
    chosen = [name for name in scripts() if not options.names or name.startswith(tuple(options.names))]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as spare:
        verdicts = compare(chosen, options.folder or Path(spare), options.ranks)
    for name, verdict in verdicts.items():
        if verdict != "right":
            print(f"{name:32} {verdict}")
    counts = Counter(verdict.split(":")[0].split(" (")[0] for verdict in verdicts.values())
    print(
        f"{len(verdicts)} scripts, alone and on {options.ranks} ranks, {time.monotonic() - began:.0f} s: {dict(counts)}"
    )
    sys.exit(not set(counts) <= {"right", "refused"})


if __name__ == "__main__":
    main()
