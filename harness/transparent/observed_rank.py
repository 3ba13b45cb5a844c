"""Rank 0 beside a witness: it compares what both see, and ends the launch where they differ.

Each gradient is compared with the witness's next one of the same training and names: TensorFlow may run two trainings
of one step in any order. Between two trainings the witness goes on at the lowest priority.
"""

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from harness.base.errors import UserError
from harness.comm.world import World, abort
from harness.transparent.file_mechanism import WITNESS
from harness.transparent.observations import Observation, compared
from harness.transparent.patch import script_place
from harness.transparent.witness import NUDGES, PeerRank

_ROUNDING, _COARSE = 3e-3, 5e-2  # of a gradient's length, in float32 and in types of 16 bits
_GONE = 1e-3  # of the greatest length they have had: a loss that has gone to 0 leaves rounding
_NUMBERS = 1e-2  # of a number that a step returns
_LONGER = 1.6  # patience with a second one: less than the others' with rank 0
_LIKE = 10  # times as far as the script alone is from itself with other kernels: no mistake, but rounding magnified
_SHARE, _LEAST_S = 0.25, 10.0  # of the run's time, that the ranks wait for the witness in trainings after the first
_UNMATCHED = 512  # of what the witness has sent, after which its steps are others
_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HARNESS_CHILD_TRAINS")


class ObservedRank(PeerRank):
    """Rank 0's end: it compares what it sees with what the witness has seen, and ends the launch at a difference.

    `patience_s`: how long it waits for the witness at every step.
    """

    def __init__(self, world: World, spawn: Callable[..., Connection], steps: float, patience_s: float) -> None:
        super().__init__(steps=steps, over=False)
        self._spawn, self._line = spawn, spawn("witness")
        self._world, self._patience_s = world, patience_s
        self._began = time.monotonic()
        self._waited_s = 0.0  # for the witness, in trainings after the first
        self._runtime: Any = None  # `transparent.runtime.Runtime`, which has this one
        self._heard: dict[Any, deque[Observation]] = {}
        self._news = threading.Condition()
        self._unmatched = 0  # of what has been heard
        self._asked = 0  # times that the witness has asked for what rank 0 shares
        self._hung_up = self._rested = False
        self._has_own_files = False
        self._taken = self._agreed = 0
        self._order: list[Any] = []  # keys of what has been compared
        self._shared: list[Any] = []
        self._most = 0.0
        self._longest: dict[tuple[str, ...], float] = {}  # gradients of all these variables so far
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                message = self._line.recv()
                with self._news:
                    if isinstance(message, str):
                        self._has_own_files = True
                    elif isinstance(message, int):
                        self._asked = message
                    else:
                        self._heard.setdefault(message.key, deque()).append(message)
                        self._unmatched += 1
                    self._news.notify_all()
        except (EOFError, OSError):
            with self._news:
                self._hung_up = True
                self._news.notify_all()

    def install(self, runtime: Any) -> None:
        """Take note of where to tell what has been found."""
        self._runtime = runtime

    def await_own_files(self) -> None:
        """Wait for the witness's word that it has them, or for its end."""
        with self._news:
            self._news.wait_for(lambda: self._has_own_files or self._hung_up, timeout=self._patience_s)

    def begins(self) -> None:
        """Say so where nobody judges a training."""
        if self._over and self._runtime is not None and self._agreed:
            self._runtime.note(f"no witness has judged what the script trains from {script_place(_main_frame())} on")

    def rest(self) -> None:
        """Wait for the witness a share of the run's time at most from now on."""
        self._rested = True

    def share(self, value: Any) -> Any:
        """Tell the witness, as long as there is one."""
        if not self._over:
            self._shared.append(value)
            with contextlib.suppress(OSError):
                self._line.send((value,))
        return value

    def end(self, why: str = "") -> None:
        """Watch no longer."""
        if self._over:
            return
        self._over = True
        self._shared.clear()
        with contextlib.suppress(OSError):
            self._line.send(None)
        if self._runtime is None:
            return
        self._runtime.note(why or self.told())
        self._switch_off(list(self._trainings.values()))

    def _await(self, seen: Observation) -> Observation | None:
        """Wait for what the witness has seen at the same place; None where it says nothing more, or other things.

        Raises:
            queue.Empty: it has not come so far in time.
        """
        begun, first = time.monotonic(), not self._rested and self._step <= self._steps
        patience_s = self._patience_s
        if not first and not self._has_doubts():
            allowed_s = max(_LEAST_S, _SHARE * (begun - self._began)) - self._waited_s
            patience_s = min(patience_s, max(0.0, allowed_s))

        def settled() -> bool:
            stuck = self._asked > len(self._shared) or self._unmatched > _UNMATCHED
            return bool(self._heard.get(seen.key)) or self._hung_up or stuck

        with self._news:
            came = self._news.wait_for(settled, timeout=patience_s)
            self._waited_s += 0.0 if first else time.monotonic() - begun
            if self._heard.get(seen.key):
                self._unmatched -= 1
                return self._heard[seen.key].popleft()
        if not came:
            raise queue.Empty
        return None

    def _has_doubts(self) -> bool:
        """Tell whether something of the script was a sum over rows, or not of single rows."""
        return self._runtime is not None and (self._runtime.collectives.trial.sums or self._runtime.mixes)

    def take(self, seen: Observation) -> None:
        """Compare; a difference ends all ranks by a sentence."""
        if self._over:
            return
        if self._runtime is not None and self._runtime.own.present:
            self.end("no witness has judged the training: every rank reads rows of its own")
            return
        try:
            other = self._await(seen)
        except queue.Empty:
            place = f"step {self._step}" if len(self._trainings) < 2 else script_place(_main_frame())
            self.end(f"{self.told()}; the witness was left behind: it has not come to {place} in time")
            return
        if other is None:
            others = "" if self._hung_up else "; then its steps were others than the ranks'"
            self.end(f"{self.told()}{others}")
            if seen.training > 0 and self._agreed:
                self.begins()
        elif seen.measures.shape != other.measures.shape:
            self.end(f"{self.told()}; then its steps were others than the ranks'")
        else:
            self._taken += 1
            self._order.append(seen.key)
            self._compare(seen, other)

    def _compare(self, seen: Observation, other: Observation) -> None:
        """Compare what rank 0 and the witness have `seen` at the same place."""
        lengths = np.nan_to_num(other.measures[:, 0], posinf=0.0)
        self._longest[seen.names] = max(self._longest.get(seen.names, 0.0), float(np.linalg.norm(lengths)))
        least = _GONE * self._longest[seen.names]
        apart, name = compared(seen, other, least)
        if apart > (_NUMBERS if seen.kind == "number" else _COARSE if self.coarse else _ROUNDING):
            what = f"the {seen.kind} '{name}' is {apart:.2g} of its size away from"
            alone = self._from_itself(other, least)
            if apart > _LIKE * alone:
                rounds = f"itself rounded to {alone:.0e}" if alone else "how far it rounds was not found in time"
                self._end_all(f"{what} what one process makes of the whole batch ({rounds})")
            self.end(
                f"{self.told()}; then {what} the witness's, as the script alone is ({alone:.2g}) from itself with "
                "other kernels: what magnifies rounding so cannot be judged"
            )
            return
        if abs(seen.rows - other.rows) > 0.5:
            self._end_all(f"the ranks together have {seen.rows:.0f} of the batch's {other.rows:.0f} rows")
        self._most = max(self._most, apart)
        self._agreed += seen.kind == "gradient"

    def _from_itself(self, seen: Observation, least: float) -> float:
        """Return how far a second witness, which rounds otherwise, is from what the first one has `seen` last."""
        deadline = time.monotonic() + _LONGER * self._patience_s
        onednn = "TF_ENABLE_ONEDNN_OPTS"
        switches = {NUDGES: "1", onednn: str(int(os.environ.get(onednn) == "0"))}
        left, again = self._order.count(seen.key), None
        with self._spawn("witness-again", **switches) as line:
            try:
                for value in self._shared:
                    line.send((value,))
                while left:
                    if not line.poll(max(0.0, deadline - time.monotonic())):
                        return 0.0
                    message = line.recv()
                    if isinstance(message, Observation) and message.key == seen.key:
                        left, again = left - 1, message
            except (EOFError, OSError):  # it has died
                return 0.0
        alike = again is not None and again.measures.shape == seen.measures.shape
        return compared(again, seen, least)[0] if alike and again is not None else np.inf

    def _end_all(self, what: str) -> NoReturn:
        abort(
            self._world,
            UserError(
                f"in step {self._step} {what} ({script_place(_main_frame())}): divided over ranks, the script trains "
                "otherwise than alone; run it with -n 1, or with --witness off all the same"
            ),
        )

    def told(self) -> str:
        """Return what the witness has shown."""
        if not self._agreed:
            return "no witness has judged the training: it has seen no gradients of the script"
        trainings = f" of {len(self._trainings)} trainings" if len(self._trainings) > 1 else ""
        return (
            f"a witness, the script alone and undivided, had the same gradients and numbers in its first {self._agreed}"
            f" steps{trainings} (apart by {self._most:.1e} at most)"
        )


def _main_frame() -> Any:
    """Return where Python's main thread is: gradients are looked at in threads of TensorFlow."""
    return sys._current_frames()[threading.main_thread().ident or 0]


def start(
    world: World,
    words: tuple[Any, ...],
    script: Path,
    logs: Path,
    cores: set[int],
    *,
    steps: float,
    patience_s: float,
) -> ObservedRank:
    """Start the witness of the ranks of `world`, on rank 0, on `cores`.

    It is given `words`, runs `script` and prints into `logs`.
    """
    places = f"{script.absolute()}\n{logs.absolute()}"

    def spawn(name: str, **switches: str) -> Connection:
        ours, theirs = Pipe()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_MPI)}
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{name}.log").open("wb") as output:
            witness = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("start.py"))],
                env={**environment, WITNESS: places, **switches},
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        os.sched_setaffinity(witness.pid, cores)
        theirs.close()
        ours.send((world.size, steps, *words))
        return ours

    return ObservedRank(world, spawn, steps, patience_s)
