"""Cut the network between two hosts at random moments: ``python -m tests.links --cuts 30``.

Three kinds take turns. A cut that heals well before `--patience` is over (TCP tries again ever more slowly): the launch
must end as the undisturbed one does. One that stays, under ON_FAILURE=abort: all must end, and the same command then
comes to the undisturbed launch's weights, from its checkpoint. One that stays, under ON_FAILURE=shrink: all must end.
Afterwards no process is left.
"""

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.comm.hang import REPORT, REQUEST
from harness.schema.record import read_run
from tests.hosts.lab import Lab, environment_of_ranks, hosts
from tests.losses import LIMIT_S, processes_of

KINDS = ("heals", "abort", "shrink")
END_S = 60.0  # after the launcher, until the ranks of the other host have ended too: it only catches what stays
PATIENCE_S = 120.0  # of launches that are not cut, or whose network heals: no rank of theirs may be taken for lost


@dataclass(kw_only=True)
class Links:
    """Launches of `ranks` ranks on each host of `lab`; their records lie in `folder`. `sha256` is the undisturbed's.

    `python` starts those that are not cut, `patience` in seconds is of those whose network stays cut.
    """

    lab: Lab
    folder: Path
    ranks: int = 1
    patience: float = 8.0
    python: str = sys.executable
    sha256: str = ""
    noticed_s: list[float] = field(default_factory=list)  # by the first rank, from the cut on
    ended_s: list[float] = field(default_factory=list)

    def start(
        self, record: Path, kind: str, python: str = sys.executable, patience: float = PATIENCE_S
    ) -> "subprocess.Popen[bytes]":
        """Start a launch, which says what it says beside its record."""
        launcher, *words = self.lab.launcher(self.ranks)
        words = [*(("--with-ft", "ulfm") if kind == "shrink" else ()), *words]
        options = ("--on-failure", "shrink") if kind == "shrink" else ("--checkpoint", "100")
        command = [
            *self.lab.enter("n1"),
            launcher,
            *words,
            python,
            "-m",
            "harness",
            "train",
            "--dataset",
            "adult",
            "--data-kind",
            "synthetic",
            "--samples",
            "8000",
            "--seed",
            "1",
            "--epochs",
            "60",
            *options,
            "--hang-timeout",
            str(patience),
            "--record",
            str(record),
        ]
        with said(record).open("ab") as out:
            return subprocess.Popen(
                command, stdout=out, stderr=out, env=environment_of_ranks() | {"PYTHONUNBUFFERED": "1"}
            )

    def whole(self) -> None:
        """Train undisturbed."""
        record = self.folder / "whole"
        code = self.start(record, "abort", self.python).wait(LIMIT_S)
        assert code == 0, said(record).read_text(errors="replace")[-2000:]
        self.sha256 = read_run(record).weights.sha256

    def cut(self, number: int, kind: str, chance: random.Random) -> list[str]:
        """Cut a launch's network, and return what was wrong with what it came to."""
        record = self.folder / f"{number}-{kind}"
        process = self.start(record, kind, patience=PATIENCE_S if kind == "heals" else self.patience)
        while "epoch 2/" not in said(record).read_text(errors="replace") and process.poll() is None:
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 3))
        self.lab.network(cut=("n2",))
        begin, cut = time.monotonic(), time.time()
        found = []
        if kind == "heals":
            time.sleep(chance.uniform(0, 0.4) * self.patience)
        else:
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                found.append("it did not end")
            self.ended_s.append(time.monotonic() - begin)
            request = watched(record) / REQUEST  # with "shrink" none where the cut met ranks that agree on failures
            if kind == "abort" and not found and not request.exists():
                found.append("no rank noticed it")
            self.noticed_s.append((request.stat().st_mtime if request.exists() else math.nan) - cut)
            deadline = time.monotonic() + END_S
            while processes_of(record) and time.monotonic() < deadline:
                time.sleep(0.1)
            found += [f"{one} is left" for one in processes_of(record)]
        self.lab.network()
        if kind == "abort" and process.poll() is not None:
            process = self.start(record, kind, self.python)
        if kind != "shrink":
            code = process.wait(LIMIT_S)
            if code or read_run(record).weights.sha256 != self.sha256:
                found.append(f"exit code {code}: {said(record).read_text(errors='replace')[-2000:]}")
        elif process.poll() in (0, None) or not explained(record):
            found.append(f"exit code {process.poll()}: {said(record).read_text(errors='replace')[-2000:]}")
        return found


def said(record: Path) -> Path:
    """Return the file of what a launch says."""
    return record.with_suffix(".said")


def watched(record: Path) -> Path:
    """Return the folder in which the ranks of a launch tell each other that they wait."""
    return record.parent / "rank-logs" / record.name / "hang"


def explained(record: Path) -> bool:
    """Tell whether a launch has said why it ended: on the page of its watch, or as ranks that agree on failures do."""
    page = watched(record) / REPORT
    if page.exists():
        return "no progress" in page.read_text()
    return "the network is broken or a host is gone" in said(record).read_text(errors="replace")


def main() -> int:
    """Cut as often as asked, print each, and the times to the end; exit code 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=8.0, help="seconds")
    asked = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory(prefix="harness-links-") as name, hosts(2, Path(name)) as lab:
        links = Links(lab=lab, folder=Path(name), patience=asked.patience)
        links.whole()
        for number in range(asked.cuts):
            kind = KINDS[number % len(KINDS)]
            found = links.cut(number, kind, random.Random(f"{asked.seed}/{number}"))
            faults += len(found)
            times = () if kind == "heals" else (links.noticed_s[-1], links.ended_s[-1])
            ended = f", noticed after {times[0]:.1f} s, ended after {times[1]:.1f}" if times else ""
            print(f"cut {number + 1}, {kind}{ended}: {len(found)} faults", *found, sep="\n  ", flush=True)
    print(f"{asked.cuts} cuts, {faults} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
