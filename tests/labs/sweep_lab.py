"""Whole sweeps in a folder of their own, with a launcher that trains nothing."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.base.command_context import Context
from harness.datasets import locate
from harness.schema.layout import Layout
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload
from harness.sweep.planned_launches import current
from tests.labs.doubles import install

_WAIT_S = 120.0


@dataclass
class Lab:
    """A folder with a launcher that obeys, a small data file, and results, all with spaces in their paths."""

    folder: Path
    workload: Workload

    @property
    def results(self) -> Path:
        return self.folder / "all results"

    def behave(self, **by_ranks: str) -> None:
        """Say what launches do, by their number of ranks: ``r1="fail"``."""
        text = json.dumps({ranks[1:]: behaviour for ranks, behaviour in by_ranks.items()})
        (self.folder / "behaviour.json").write_text(text)

    def launched(self) -> list[str]:
        path = self.folder / "launched.txt"
        names = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return names

    def sweep(self, nodes: tuple[int, ...] = (1, 2), repeats: int = 2, oversubscribe: bool = False) -> Sweep:
        layouts = tuple(Layout(nodes=count) for count in nodes)
        data_id = locate(self.workload, None).data_id
        sweep = Sweep(
            workload=self.workload, layouts=layouts, repeats=repeats, oversubscribe=oversubscribe, data_id=data_id
        )
        return current(sweep)

    def run(self, sweep: Sweep, **options: Any) -> str:
        """Run the sweep and return what the user saw."""
        from harness.sweep.execute import run_sweep

        with contextlib.redirect_stdout(io.StringIO()) as said:
            try:
                run_sweep(sweep, Context(results=self.results), **options)
            finally:
                self.said = said.getvalue()
        return self.said

    @property
    def command(self) -> list[str]:
        words = ["sweep", "--data", str(self.workload.data_file), "--nodes", "1..2", "--repeats", "2"]
        words += ["--scheduler", "local"]
        return [sys.executable, "-m", "harness", *words, "--results", str(self.results)]


def make_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Return a lab whose launcher is the first that PATH has (the fixture `lab`)."""
    import numpy as np

    from harness.sweep.schedulers import local
    from tests.labs.factories import make_run, write_run

    folder = tmp_path / "a lab"
    folder.mkdir()
    install("fake_mpirun.py", folder / "mpirun")
    whole = write_run(tmp_path / "whole", make_run())
    for name in ("run.json", "steps.parquet"):
        shutil.copy(whole / name, folder)
    np.savez(folder / "own.npz", x=np.ones((20, 3), np.float32), y=np.arange(20) % 2)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HARNESS_MPI", "system")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(local, "usable_cores", lambda: 2)
    workload = Workload(
        dataset="file", model="dnn", batch_per_rank=5, epochs=3, data_file=str((folder / "own.npz").resolve())
    )
    built = Lab(folder=folder, workload=workload)
    built.behave()
    return built


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {_WAIT_S} s for {what}"
        time.sleep(0.05)


def _heed_signals() -> None:
    """Undo what nohup or a background shell has told the tests to ignore."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGHUP else signal.default_int_handler)


@contextlib.contextmanager
def hanging(lab: Lab, behaviour: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Yield a sweep in a process of its own whose launch on 2 ranks waits, and one rank of that launch."""
    lab.behave(r2=behaviour)
    sweep = subprocess.Popen(
        lab.command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_signals,
    )
    number = lab.folder / "rank.pid"
    try:
        wait_for(number.exists, "the launch to hang")
        yield sweep, psutil.Process(int(number.read_text()))
    finally:
        sweep.kill()
        sweep.communicate()
        if number.exists():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(int(number.read_text())).kill()
