"""Kill `harness run` and `harness sweep` at random moments (kill -9), and count what is left of them 10 s later.

``python -m tests.orphans [KILLS] [--user UID] [--seed N]`` kills as many runs as sweeps, as this user or, started by
root, as another one. Left may be nothing: no process that the command has started, no folder of a launch or of a rank
and no segment of shared memory. Mounts are a rank's own: they end with its last process.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.base.files import cache_folder

ROOT = Path(__file__).parents[1]
SHARED_MEMORY = Path("/dev/shm")
KINDS = ("run", "sweep")
_LIMIT_S = 10.0
_LONGEST_S = 12.0  # until the kill: ranks train from about the sixth second on
_MARK = "HARNESS_TEST_VICTIM"
_SCRIPT = """\
import keras, numpy as np
x = np.random.default_rng(1).normal(size=(2000, 20)).astype("float32")
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=20, epochs=100000, verbose=0)
"""


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A command of a `kind` that is to be killed; its files are in `folder`, `uid` is whose it is."""

    kind: str
    folder: Path
    uid: int
    root: Path = ROOT

    def words(self) -> list[str]:
        """Return the command line: it would go on for minutes."""
        harness = [sys.executable, "-m", "harness"]
        if self.kind == "run":
            return [*harness, "run", "-n", "2", "train.py"]
        data = ["--dataset", "adult", "--data-kind", "synthetic", "--samples", "2005", "--epochs", "100000"]
        return [*harness, "sweep", *data, "--nodes", "1,2", "--oversubscribe"]

    def start(self, mark: str) -> "subprocess.Popen[bytes]":
        """Start the command, which is found again by `mark` in the environment of all that it starts."""
        (self.folder / "train.py").write_text(_SCRIPT)
        places = {name: str(self.folder / name.lower()) for name in ("TMPDIR", "HARNESS_LOCK_DIR", "HOME")}
        own = {"PYTHONPATH": str(self.root), "HARNESS_CACHE_DIR": str(self.folder / "cache"), "HARNESS_FETCH": "0"}
        shutil.copytree(cache_folder() / "native", self.folder / "cache/native", dirs_exist_ok=True)
        for path in places.values():
            Path(path).mkdir(exist_ok=True)
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, self.uid, self.uid, follow_symlinks=False)
        with (self.folder / "said.txt").open("wb") as said:
            return subprocess.Popen(
                self.words(),
                cwd=self.folder,
                env={**os.environ, **places, **own, "HARNESS_QUIET_S": "0", _MARK: mark},
                stdout=said,
                stderr=said,
                user=self.uid,
                group=self.uid,
                extra_groups=[] if os.geteuid() == 0 else None,
            )

    def kill(self, after_s: float) -> list[str]:
        """Start the command, kill it after some seconds, and return what is left of it `_LIMIT_S` later."""
        mark = uuid.uuid4().hex
        process = self.start(mark)
        folders: set[Path] = set()
        pids: set[int] = set()
        deadline = time.monotonic() + after_s
        while time.monotonic() < deadline and process.poll() is None:
            for one in marked(mark):
                pids.add(one.pid)
                folders.add(Path(_variable(one, "HARNESS_SCRATCH") or self.folder / "none"))
            time.sleep(0.1)
        process.kill()
        if process.wait() != -signal.SIGKILL:
            return [f"the command ended before: {(self.folder / 'said.txt').read_text()[-500:]}"]
        time.sleep(_LIMIT_S)
        left = marked(mark)
        found = [f"process: {_name(one)}" for one in left]
        found += [f"launch folder {folder}" for folder in folders if folder.exists()]
        found += [f"rank folder {folder}" for folder in (self.folder / "tmpdir").glob("harness-rank-*")]
        found += [f"segment {path}" for pid in pids for path in SHARED_MEMORY.glob(f"harness-{pid}-*")]
        for one in left:  # the next attempt begins without them
            one.kill()
        return found


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that have `mark` in their environment."""
    return [one for one in psutil.process_iter() if _variable(one, _MARK) == mark]


def _variable(process: psutil.Process, name: str) -> str | None:
    try:
        return process.environ().get(name)
    except (psutil.Error, OSError):
        return None


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:120]
    except psutil.Error:
        return "ended meanwhile"


@contextmanager
def own_folder(uid: int) -> Iterator[Path]:
    """Yield a folder which the user `uid` can reach, and remove it."""
    with tempfile.TemporaryDirectory(prefix="harness-orphans-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def run(kills: int, seed: int, uid: int, root: Path = ROOT) -> tuple[int, list[str]]:
    """Kill `kills` commands, and return how many were killed and what was left of them, by kind."""
    chance = random.Random(seed)
    found: list[str] = []
    for number in range(kills):
        kind = KINDS[number % len(KINDS)]
        after_s = chance.uniform(0.3, _LONGEST_S)
        with own_folder(uid) as folder:
            left = Victim(kind=kind, folder=folder, uid=uid, root=root).kill(after_s)
        print(f"{kind}, killed after {after_s:.1f} s: {len(left)} left", *left, sep="\n  ", flush=True)
        found += [f"{kind}: {what}" for what in left]
    return kills, found


def main() -> int:
    """Kill as often as asked, and print what was left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--user", type=int, default=os.geteuid())
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout that is tried")
    asked = parser.parse_args()
    kills, found = run(asked.kills, asked.seed, asked.user, asked.root)
    kinds = Counter(" ".join(what.split()[:2]).rstrip(":") for what in found)
    print(f"{kills} kills as user {asked.user}: {len(found)} left: {dict(kinds)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
