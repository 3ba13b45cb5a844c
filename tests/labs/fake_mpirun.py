#!/usr/bin/env python3
"""A launcher for tests of the sweep: behaves as `behaviour.json` beside it says for that number of ranks.

``ok`` writes a whole record, ``fail`` prints what a failing rank prints, ``silent`` exits with 0 and writes
nothing, ``slow`` writes a whole record after half a second, ``cut`` leaves half a record, ``hang`` starts a rank and
waits, ``stubborn`` one that ignores SIGTERM. ``stops`` leaves a checkpoint and asks to be started again, twice, and
``recovers`` fails at first, ``killed`` is. Times are invalid where it is ``busy``, at first where ``disturbed``.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAILURE = "rank 1: loss is not finite: lower the learning rate"
BAD_NODE = "a bad node"


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print("mpirun (Open MPI) 5.0.0 for tests")
        return 0
    ranks = arguments[arguments.index("-n") + 1]
    point = json.loads(Path(arguments[arguments.index("--point") + 1]).read_text())
    folder = Path(arguments[arguments.index("--record") + 1])
    with (HERE / "launched.txt").open("a") as file:
        print(folder.name, file=file)
    return act(json.loads((HERE / "behaviour.json").read_text()).get(ranks, "ok"), point, folder, int(ranks))


def whole(ranks: int) -> dict[str, object]:
    """Return the record of one rank as that of `ranks` alike."""
    record = json.loads((HERE / "run.json").read_text())
    record["ranks"] *= ranks
    for epoch in record["epochs"]:
        epoch |= {name: values * ranks for name, values in epoch.items() if isinstance(values, list)}
    return record


def act(behaviour: str, point: object, folder: Path, ranks: int) -> int:
    record = json.dumps(whole(ranks) | {"point": point} | disturbed(behaviour, folder))
    if behaviour == "fail":
        sys.stdout.buffer.write(b"epoch 1/3\0\xff\n")
        print(f"harness: {FAILURE}", file=sys.stderr)
        return 1
    mark = HERE / f"killed-{folder.name}"
    if behaviour == "killed" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour in ("stops", "recovers"):
        return in_pieces(behaviour, folder, record)
    if behaviour == "slow":
        time.sleep(0.5)
        write_whole(folder, record)
    if behaviour in ("hang", "stubborn"):
        wait(stubborn=behaviour == "stubborn")
    if behaviour in ("ok", "cut", "disturbed", "busy", "killed"):
        folder.mkdir(exist_ok=True)
        shutil.copy(HERE / "steps.parquet", folder)
        (folder / "run.json").write_text(record[: len(record) // 2] if behaviour == "cut" else record)
    return 0


def disturbed(behaviour: str, folder: Path) -> dict[str, object]:
    """Return what makes the record invalid: always on a busy machine, the first time where it was disturbed."""
    again = any((folder.parent / "replaced").glob(f"{folder.name}-*"))
    return {"invalid": ["a neighbour"]} if behaviour == "busy" or (behaviour == "disturbed" and not again) else {}


def in_pieces(behaviour: str, folder: Path, record: str) -> int:
    """Leave a checkpoint and exit with 75 twice, or fail once, and write a whole record then."""
    kept = folder.parent / "harness-checkpoints" / folder.name
    kept.mkdir(parents=True, exist_ok=True)
    attempts = len(list(kept.iterdir()))
    if attempts < (2 if behaviour == "stops" else 1):
        (kept / f"{attempts + 1:06d}-000000000.ckpt").touch()
        print(
            f"harness: stopped by SIGUSR1 in epoch {attempts + 2}" if behaviour == "stops" else f"harness: {BAD_NODE}"
        )
        return 75 if behaviour == "stops" else 1
    shutil.rmtree(kept)
    write_whole(folder, record)
    return 0


def write_whole(folder: Path, record: str) -> None:
    """Write a record as the harness does: at once or not at all."""
    staging = folder.with_name(f".{folder.name}.harness-{os.getpid():08d}")
    staging.mkdir()
    shutil.copy(HERE / "steps.parquet", staging)
    (staging / "run.json").write_text(record)
    staging.rename(folder)


def wait(*, stubborn: bool) -> None:
    """Wait with one rank in a process group of its own, as Open MPI starts them, and pass SIGTERM on."""
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
    code = f"import signal, time; {ignore} print('up', flush=True); time.sleep(300)"
    rank = subprocess.Popen([sys.executable, "-c", code], process_group=0, stdout=subprocess.PIPE)
    assert rank.stdout is not None
    rank.stdout.readline()

    def end(number: int, frame: object) -> None:
        rank.terminate()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    partial = HERE / f"rank.{os.getpid()}"  # several start at once
    partial.write_text(str(rank.pid))
    partial.rename(HERE / "rank.pid")
    time.sleep(300)


if __name__ == "__main__":
    sys.exit(main())
