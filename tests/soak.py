"""Disturb launches in every way at random: ``make soak MINUTES=10 SEED=1``.

Ranks are killed and stopped and the others go on (`tests.losses`); whole launches are killed,
their checkpoints damaged, and taken up again (`tests.kills`); the network between two hosts is cut (`tests.links`); the
disk is full. What each must come to stands there: equal weights on all ranks, every row of every epoch trained once.
"""

import argparse
import errno
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.schema.record import read_run
from tests import kills
from tests.hosts.lab import hosts, missing
from tests.kills import Victim
from tests.links import KINDS, Links
from tests.losses import Campaign

WORDS = ("--epochs", "60", "--checkpoint", "40")
SMALL = "4m"  # a disk with room for a record and its checkpoints


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Yield a disk that is soon full."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room on the disk; return the file that takes it."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as out:
        for size in (65_536, 512, 1):
            try:
                while True:
                    out.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return filler


def full_disk(folder: Path, chance: random.Random) -> list[str]:
    """Fill a launch's disk at a random moment, make room when it has ended, take it up; return what was wrong."""
    whole = Victim(words=WORDS, ranks=2, record=folder / "whole")
    whole.finish()
    (folder / "disk").mkdir()
    with small_disk(folder / "disk") as disk:
        victim = Victim(words=WORDS, ranks=2, record=disk / "record")
        process = victim.start()
        victim.await_training(process)
        time.sleep(chance.uniform(0, 2))
        filler = fill(disk)
        said, _ = process.communicate(timeout=300)
        filler.unlink()
        found = [*whole.found]
        if process.returncode and ("no space left" not in said or "Traceback" in said):
            found.append(f"exit code {process.returncode}: {said[-2000:]}")
        if record := victim.finish():
            found += kills.differences(victim.record, whole.record) if process.returncode else []
            found += [] if record.weights == read_run(whole.record).weights else ["weights differ"]
        return found + victim.found


def main() -> int:
    """Soak for as long as asked and print a summary; exit code 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance, end = random.Random(asked.seed), time.monotonic() + 60 * asked.minutes
    campaigns = {
        "ranks lost": Campaign(stops=0.2, seed=asked.seed),
    }
    done: Counter[str] = Counter()
    faults: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-soak-")))

        def kill() -> list[str]:
            return kills.run(3, seed=chance.randrange(1000), ranks=2)[1]

        def disk() -> list[str]:
            with tempfile.TemporaryDirectory(dir=folder) as name:
                return full_disk(Path(name), chance)

        ways: dict[str, Callable[[], list[str]]] = {"launch killed and taken up": kill}
        if missing():
            print(f"no network is cut and no disk filled here: {missing()}")
        else:
            links = Links(lab=stack.enter_context(hosts(2, folder)), folder=folder)
            links.whole()
            ways["network cut"] = lambda: links.cut(done.total(), chance.choice(KINDS), chance)
            ways["disk full"] = disk
        for campaign in campaigns.values():
            faults += campaign.launch(0)
        while time.monotonic() < end:
            way = chance.choice([*ways, *campaigns])
            found = ways[way]() if way in ways else campaigns[way].launch(done.total() + 1)
            done[way] += 1
            faults += found
            print(f"{way}: {len(found)} faults", *found, sep="\n  ", flush=True)
    for way, times in sorted(done.items()):
        print(f"{times:4}  {way}")
    for way, campaign in campaigns.items():
        print(f"{way}:")
        campaign.table()
    print(f"seed {asked.seed}: {done.total()} disturbed launches, {len(faults)} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
