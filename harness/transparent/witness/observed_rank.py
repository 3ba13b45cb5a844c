"""Rank 0 while it has a witness: it compares the observations of both, and ends the launch where they differ.

Each gradient is compared with the witness's next one of the same training and names, as TensorFlow may run two
trainings of one step in any order. Between two trainings the witness goes on at the lowest priority.
"""

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from harness.base.errors import UserError
from harness.comm.world import World, abort
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.patch import script_place
from harness.transparent.private_files import WITNESS, enter_as_witness
from harness.transparent.witness.observation import Beginning, Observation, compared
from harness.transparent.witness.observed_state import ObservedState, StateGap, VariableKey, state_gaps
from harness.transparent.witness.peer_rank import NUDGES, SCRIPT_END, Observed, PeerRank
from harness.transparent.witness.written_outputs import written_gaps

# Differences that are allowed, as shares: of a gradient's length in float32 and in types of 16 bits, and of a number.
_ROUNDING = 3e-3
_COARSE = 5e-2
_NUMBERS = 1e-2
_VANISHED = 1e-3  # of the greatest length that gradients have had: when a loss has gone to 0, rounding is left
# Times the patience, with a second witness, and where the launch would end otherwise; other ranks wait still longer.
_LAST_PATIENCE = 1.6
_MAGNIFIED = 10  # times as far as the script alone is from itself with other kernels: up to this it is rounding
# How long the ranks wait for the witness in trainings after the first: a share of the run, at least some seconds.
_WAIT_SHARE = 0.25
_LEAST_WAIT_S = 10.0
_MOST_UNMATCHED = 512  # observations of the witness without one of rank 0: then it makes other steps
_MPI = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HARNESS_CHILD_TRAINS")


class ObservedRank(PeerRank):
    """Rank 0: it compares its observations with those of the witness, and ends the launch at a difference.

    `patience_s`: how long it waits for the witness at every step.
    """

    def __init__(self, world: World, spawn: Callable[..., Connection], steps: float, patience_s: float) -> None:
        super().__init__(steps=steps, over=False)
        self._spawn = spawn
        self._line = spawn("witness")
        self._world = world
        self._patience_s = patience_s
        self._began = time.monotonic()
        self._waited_s = 0.0  # for the witness, in trainings after the first
        self._runtime: Any = None  # `transparent.runtime.Runtime`, which has this one
        self._heard: dict[Any, deque[Any]] = {}
        self._news = threading.Condition()
        self._unmatched = 0  # of what has been heard
        self._asked = 0  # times that the witness has asked for what rank 0 shares
        self._hung_up = False
        self._rested = False
        self._has_own_files = False
        self._agreed = 0  # gradients that were the same
        self._beginnings = 0  # trainings by Keras
        self._is_missed = False  # it has ended before it could compare what is trained now
        self._is_unproved = False  # batches are divided of which no gradient has been compared
        self._compared_keys: list[Any] = []
        self._shared: list[Any] = []
        self._greatest_gap = 0.0
        self._magnified: set[VariableKey] = set()  # that the script alone does not have twice either
        self._undetermined: set[str] = set()  # sources of what it does not write twice either
        self._longest: dict[tuple[str, ...], float] = {}  # the greatest length of gradients, by their variables
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
        """Take the runtime, which prints what the witness has shown."""
        super().install(runtime)
        self._runtime = runtime

    def await_own_files(self) -> None:
        """Wait for the witness's word that it has them, or for its end."""
        with self._news:
            self._news.wait_for(lambda: self._has_own_files or self._hung_up, timeout=self._patience_s)

    def meet(self) -> None:
        """Wait until the witness begins the same training."""
        self._beginnings += 1
        if not self._over:
            self._awaited(Beginning(self._beginnings))

    def judges_next(self) -> bool:
        """Tell whether the witness is there, or has ended because nothing could be compared with one process."""
        self._is_unproved = not self._is_missed
        return not self._is_missed

    def rest(self) -> None:
        """Wait for the witness for a share of the run's time at most from now on."""
        self._rested = True

    def share(self, value: Any) -> Any:
        """Send `value` to the witness, as long as there is one; return it."""
        if not self._over:
            self._shared.append(value)
            with contextlib.suppress(OSError):
                self._line.send((value,))
        return value

    def end(self, why: Note | None = None) -> None:
        """End the witness; note `why`, or what it has shown."""
        if self._over:
            return
        self._over = True
        self._outputs.pause()
        self._shared.clear()
        with contextlib.suppress(OSError):
            self._line.send(None)
        if self._runtime is None:
            return
        self._runtime.note(why or self.summary())
        self._switch_off(list(self._trainings.values()))

    def _end_because(self, reason: Note) -> None:
        """End the witness; note what it has shown, and the `reason` why it shows no more."""
        self.end()
        if self._runtime is not None:
            self._runtime.note(reason)

    def _miss(self, why: str) -> None:
        """End the witness, which compares no more; `why`, as the begin of a sentence.

        What it has compared counts. Whatever is trained later is not divided.
        """
        if self._is_unproved:
            self._refuse(f"{why}, so that nobody compares the training with that of one process")
        self._is_missed = True
        self._end_because(Note(code=NoteCode.WITNESS_MISSED, values={"reason": why}))

    def _refuse(self, why: str) -> NoReturn:
        """End all ranks, whose training nobody can judge; `why`, as the begin of a sentence."""
        abort(self._world, UserError(f"{why}: run it with -n 1, or with --unjudged all the same"))

    def _awaited(self, observation: Observed) -> Any:
        """Return the witness's observation at the same place; None where it has none: then it has ended."""
        place = script_place(_main_frame())
        try:
            alone = self._await(observation)
        except queue.Empty:
            self._miss(f"the witness, the script alone, has not come to {place} in time")
            return None
        if alone is None and self._hung_up:
            self._miss(f"the witness, the script alone, has ended before {place}")
        elif alone is None:
            self._refuse(f"the script alone makes other steps than the ranks ({place})")
        return alone

    def _await(self, observation: Observed) -> Any:
        """Wait for the witness's observation at the same place; None where it sends no more, or makes other steps.

        Raises:
            queue.Empty: it has not come so far in time.
        """
        begun = time.monotonic()
        is_first_training = not self._rested and self._step <= self._steps
        patience_s = self._patience_s
        if self._is_unproved:
            patience_s *= _LAST_PATIENCE
        elif not is_first_training and not self._has_doubts():
            allowed_s = max(_LEAST_WAIT_S, _WAIT_SHARE * (begun - self._began)) - self._waited_s
            patience_s = min(patience_s, max(0.0, allowed_s))

        def is_settled() -> bool:
            is_stuck = self._asked > len(self._shared) or self._unmatched > _MOST_UNMATCHED
            return bool(self._heard.get(observation.key)) or self._hung_up or is_stuck

        with self._news:
            in_time = self._news.wait_for(is_settled, timeout=patience_s)
            self._waited_s += 0.0 if is_first_training else time.monotonic() - begun
            if self._heard.get(observation.key):
                self._unmatched -= 1
                return self._heard[observation.key].popleft()
        if not in_time:
            raise queue.Empty
        return None

    def _has_doubts(self) -> bool:
        """Tell whether something of the script was a sum over rows, or not of single rows."""
        return self._runtime is not None and (self._runtime.collectives.trial.sums or self._runtime.mixes)

    def take(self, observation: Observed) -> None:
        """Compare an observation with the witness's; a difference ends all ranks with a sentence."""
        if self._over:
            return
        if self._runtime is not None and self._runtime.own_rows.present:
            self.end(Note(code=NoteCode.ROWS_OF_EACH_RANK))
            return
        alone = self._awaited(observation)
        if alone is None:
            return
        self._compared_keys.append(observation.key)
        if isinstance(observation, ObservedState):
            self._compare_state(observation, alone)
            self._compare_written(observation, alone)
        elif isinstance(observation, Observation):
            self._compare(observation, alone)

    @np.errstate(all="ignore")  # the script may have asked NumPy to raise
    def _compare_state(self, divided: ObservedState, alone: ObservedState) -> None:
        """Compare what the variables of the ranks hold with what those of the witness do.

        A variable that the script alone has otherwise with other kernels is not compared from then on.
        """
        gaps = [gap for gap in state_gaps(divided, alone) if gap.variable not in self._magnified]
        if not gaps:
            return
        again = self._again(alone)
        rounded = {} if again is None else {gap.variable: gap for gap in state_gaps(again, alone)}
        for gap in gaps:
            rounding = rounded.get(gap.variable)
            if rounding is None or gap.share > _MAGNIFIED * rounding.share:
                self._end_all(self._state_sentence(gap))
        self._magnified |= {gap.variable for gap in gaps}

    def _compare_written(self, divided: ObservedState, alone: ObservedState) -> None:
        """Compare what the script has printed and written on rank 0 and alone.

        What the script alone does not write twice alike is not compared from then on.
        """
        share = _COARSE if self.coarse else _NUMBERS
        gaps = written_gaps(divided.written, alone.written, share=share)
        gaps = [gap for gap in gaps if gap.source not in self._undetermined]
        if not gaps:
            return
        again = self._again(alone)
        others = () if again is None else written_gaps(again.written, alone.written, share=share / _MAGNIFIED)
        differing = {gap.source: gap.excess for gap in others}
        for gap in gaps:
            if gap.excess > differing.get(gap.source, 0.0):
                ours, theirs = gap.values
                self._end_all(f"{gap.source}: '{ours}', and not '{theirs}' as one process writes")
        self._undetermined |= {*differing}

    def script_end(self) -> None:
        """Compare what the script has left at its end, if the witness comes there in time."""
        if not self._is_looking:
            return
        observation = self.observed_state(SCRIPT_END)
        try:
            alone = self._await(observation)
        except queue.Empty:
            return
        if alone is not None:
            self._compared_keys.append(observation.key)
            self._compare_state(observation, alone)
            self._compare_written(observation, alone)

    def _state_sentence(self, gap: StateGap) -> str:
        """Return what differs, as the begin of a sentence."""
        name = gap.variable.kind.name.partition(":")[0]
        variable = f"the variable '{name}' made in {self._live.places[gap.variable]}"
        if gap.values is None:
            return f"{variable} is {gap.share:.2g} of its size away from what one process makes of the whole batch"
        return f"{variable} is {gap.values[0]:.6g} and not {gap.values[1]:.6g} as one process makes of the whole batch"

    @np.errstate(all="ignore")  # the script may have asked NumPy to raise
    def _compare(self, divided: Observation, alone: Observation) -> None:
        """Compare the observation of the ranks, of a divided batch, with the witness's of the whole batch."""
        if divided.measures.shape != alone.measures.shape:
            self._refuse(f"the script alone has other {divided.kind}s than the ranks ({script_place(_main_frame())})")
        lengths = np.nan_to_num(alone.measures[:, 0], posinf=0.0)
        longest = max(self._longest.get(divided.names, 0.0), float(np.linalg.norm(lengths)))
        self._longest[divided.names] = longest
        least = _VANISHED * longest
        gap, name = compared(divided, alone, least)
        if gap > self._allowed_gap(divided):
            rounding = self._own_rounding(alone, least)
            if rounding is None or gap > _MAGNIFIED * rounding:
                what = f"the {divided.kind} '{name}' is {gap:.2g} of its size away from"
                rounds = "how far it rounds is not known: witness-again.log says why"
                if rounding is not None:
                    rounds = f"itself rounded to {rounding:.0e}"
                self._end_all(f"{what} what one process makes of the whole batch ({rounds})")
            values: dict[str, str | float] = {"kind": divided.kind, "name": name, "gap": gap, "rounding": rounding}
            self._end_because(Note(code=NoteCode.ROUNDING_MAGNIFIED, values=values))
            return
        if abs(divided.rows - alone.rows) > 0.5:
            self._end_all(f"the ranks together have {divided.rows:.0f} of the batch's {alone.rows:.0f} rows")
        self._greatest_gap = max(self._greatest_gap, gap)
        if divided.kind == "gradient":
            self._agreed += 1
            self._is_unproved = False

    def _allowed_gap(self, observation: Observation) -> float:
        """Return up to which share of its size an observation may differ from the witness's."""
        if observation.kind == "number" or (observation.kind == "prediction" and not self.coarse):
            return _NUMBERS
        return _COARSE if self.coarse else _ROUNDING

    def _own_rounding(self, alone: Observation, least: float) -> float | None:
        """Return how far a second witness, which rounds differently, is from the first one's last observation.

        None if it has not come there in time, or has died.
        """
        again = self._again(alone)
        if again is None:
            return None
        if again.measures.shape != alone.measures.shape:
            return float(np.inf)
        return compared(again, alone, least)[0]

    def _again(self, alone: Observation | ObservedState) -> Any:
        """Return what a second witness, which rounds differently, observes in the place of the first one's last.

        None if it has not come there in time, or has died.
        """
        deadline = time.monotonic() + _LAST_PATIENCE * self._patience_s
        onednn = "TF_ENABLE_ONEDNN_OPTS"
        switches = {NUDGES: "1", onednn: str(int(os.environ.get(onednn) == "0"))}
        left = self._compared_keys.count(alone.key)
        again = None
        with self._spawn("witness-again", **switches) as line:
            try:
                for value in self._shared:
                    line.send((value,))
                while left:
                    if not line.poll(max(0.0, deadline - time.monotonic())):
                        return None
                    message = line.recv()
                    if isinstance(message, type(alone)) and message.key == alone.key:
                        left -= 1
                        again = message
            except (EOFError, OSError):  # it has died
                return None
        return again

    def _end_all(self, what: str) -> NoReturn:
        abort(
            self._world,
            UserError(
                f"in step {self._step} {what} ({script_place(_main_frame())}): divided over ranks, the script trains "
                "otherwise than alone; run it with -n 1, or with --unjudged all the same"
            ),
        )

    def summary(self) -> Note:
        """Return what the witness has shown."""
        if not self._agreed:
            return Note(code=NoteCode.WITNESS_SAW_NOTHING)
        values = {"steps": self._agreed, "trainings": len(self._trainings), "gap": self._greatest_gap}
        return Note(code=NoteCode.WITNESS_AGREED, values=values)


def _main_frame() -> Any:
    """Return where Python's main thread is: gradients are looked at in threads of TensorFlow."""
    return sys._current_frames()[threading.main_thread().ident or 0]


def start_witness(
    world: World,
    launch: tuple[Any, ...],
    script: Path,
    logs: Path,
    cores: set[int],
    *,
    steps: float,
    patience_s: float,
    forked: Callable[[], None] | None,
) -> ObservedRank:
    """Start the witness of the ranks of `world`, on rank 0, on `cores`; return rank 0's side of it.

    It is sent `launch`: the settings and the point of the launch, and whether rank 0 imports TensorFlow early. It runs
    `script` and prints into `logs`. It is forked from this process, and calls `forked`, or is a new Python where that
    is None. So is a second one, which computes with other kernels: TensorFlow chooses them when it is imported.
    """
    script = script.absolute()
    logs = logs.absolute()

    def spawn(name: str, **switches: str) -> Connection:
        ours, theirs = Pipe()
        logs.mkdir(parents=True, exist_ok=True)
        with theirs, (logs / f"{name}.log").open("wb") as output:
            if forked is None or switches:
                pid = _start_python(theirs, output, {WITNESS: f"{script}\n{logs}", **switches})
            else:
                pid = _fork(theirs, output, script, logs, forked)
        os.sched_setaffinity(pid, cores)
        ours.send((world.size, steps, *launch))
        return ours

    return ObservedRank(world, spawn, steps, patience_s)


def _start_python(line: Connection, output: BinaryIO, variables: Mapping[str, str]) -> int:
    """Start a witness that imports everything itself; return its process's number."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_MPI)}
    witness = subprocess.Popen(
        [sys.executable, str(Path(__file__).parents[1] / "start.py")],
        env={**environment, **variables},
        stdin=line.fileno(),
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    return witness.pid


def _fork(line: Connection, output: BinaryIO, script: Path, logs: Path, run: Callable[[], None]) -> int:
    """Fork a witness from this process, which has imported TensorFlow and computed nothing; return its number.

    The witness never returns from here. It closes what it has of rank 0's MPI, and does not end it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for descriptor, source in enumerate((line.fileno(), output.fileno(), output.fileno())):
            os.dup2(source, descriptor)
        highest = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
        os.closerange(3, highest + 1)
        for name in [name for name in os.environ if name.startswith(_MPI)]:
            del os.environ[name]
        for name in [name for name in sys.modules if name.partition(".")[0] == "mpi4py"]:
            sys.modules[name] = None  # type: ignore[assignment]  # not to be found: what it sent would go to the ranks
        enter_as_witness(script, logs)
        run()
    except BaseException:  # noqa: BLE001 - whatever the script ends with is for the log
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
