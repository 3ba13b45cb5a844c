"""One rank of a user's script: start-up, the script itself, the proof and the record at its end."""

import math
import os
import runpy
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.errors import RunError, SharedError, UserError
from harness.base.turns import current_turns
from harness.comm.energy_counters import EnergyMeter
from harness.comm.gpus import Gpu, start_gpu
from harness.comm.hang import END, HangWatch
from harness.comm.placement_check import observe
from harness.comm.world import World
from harness.schema.code_identity import user_files
from harness.schema.point import Point
from harness.schema.record_notes import Note, NoteCode
from harness.transparent.children import ChildProcesses, refuse_training_in_children
from harness.transparent.clocks import AgreedClocks, AgreedSignals, ClockLine, ClockSource, RankVariables, hear
from harness.transparent.early_import import import_early
from harness.transparent.install import AgreedSeeding, common_seed, same_randomness
from harness.transparent.own_modules import has_own
from harness.transparent.patch import HorovodScript, ImportHook, OwnRows, Refusals, end_at_exec, script_place, wrapped
from harness.transparent.private_files import RankFiles, check_trees, enter, kept_sentence, refused_write, sees_ranks
from harness.transparent.private_files import leave as leave_own_files
from harness.transparent.rank_output import OwnRate, rank_output
from harness.transparent.run_settings import RunSettings, excluder_of_witness
from harness.transparent.witness import STEPS, Alone, NoWitness, PeerRank, start_witness
from harness.transparent.witness import enter as enter_witness

if TYPE_CHECKING:
    from harness.transparent.runtime import Runtime
    from harness.transparent.script_record import FitObservations

# Ports of ranks above 0, and of the witness: where a script asks for a certain port, they listen at a free one.
#
# A script that serves its metrics at a fixed port works in one process. Whoever asks at that port is answered by rank
# 0; what the rank itself asks there goes to the port that it has got.


class OwnPorts:
    """Replaces `bind` and `connect` of Python's sockets."""

    def __init__(self) -> None:
        self._ports: dict[int, int] = {}  # what this process has got for what it has asked

    def install(self) -> None:
        """Put the replacements in place, for child processes too."""
        members: Any = socket.socket
        for name, replacement in (("bind", self._bind), ("connect", self._connect), ("connect_ex", self._connect)):
            setattr(members, name, wrapped(getattr(socket.socket, name), replacement))

    def _bind(self, original: Callable[..., None], sock: socket.socket, address: Any) -> None:
        if HorovodScript.active or not _is_internet(sock, address) or not address[1]:
            original(sock, address)
            return
        original(sock, (address[0], 0, *address[2:]))
        self._ports[address[1]] = sock.getsockname()[1]

    def _connect(self, original: Callable[..., Any], sock: socket.socket, address: Any) -> Any:
        if _is_internet(sock, address) and address[1] in self._ports and _is_this_host(address[0]):
            address = (address[0], self._ports[address[1]], *address[2:])
        return original(sock, address)


def _is_internet(sock: socket.socket, address: Any) -> bool:
    return sock.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple) and len(address) > 1


def _is_this_host(host: str) -> bool:
    return host in ("", "localhost", "0.0.0.0", "::", "::1", socket.gethostname()) or host.startswith("127.")


_PATIENCE_S = 60.0  # for a witness, where ranks are waited for for ever


@dataclass(kw_only=True)
class Session:
    """A script on one rank. `point` is what its record says that it was.

    `began` is when the process started, by the monotonic clock. `gpu` is the one that TensorFlow trains on, None for
    the processor.
    """

    world: World
    settings: RunSettings
    script: Path
    point: Point
    began: float
    gpu: Gpu | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    witness: NoWitness = field(default_factory=NoWitness)
    import_s: float = 0.0
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])
    signals: AgreedSignals = field(default_factory=AgreedSignals)
    rank_variables: RankVariables = field(default_factory=RankVariables)
    file_notes: list[Note] = field(default_factory=list)
    _own_rate: OwnRate | None = None
    _meter: EnergyMeter | None = None
    installed: "tuple[Runtime, FitObservations] | None" = None

    def run(self) -> None:
        """Run the script to its end and show that all ranks have the same weights.

        Raises:
            SharedError: the replicas differ, or the script trained nothing that could be synchronised.
        """
        with rank_output(self.world.rank, self.settings.logs) as self._speak:
            if not self.witness.is_witness and self.wants_witness():
                self._call_witness()
            self._prepare()
            ImportHook(self._install).install()
            self._offer_horovod()
            self._read_own_rate()
            try:
                runpy.run_path(str(self.script), run_name="__main__")
            except SystemExit as end:
                self.end(end.code)
            else:
                self.end(0)

    def _prepare(self) -> None:
        """Put in place what the script meets before it imports TensorFlow; all ranks together."""
        self._seed = common_seed(self._agree)
        # A folder of this run's own: two runs may have the same folder for their output.
        token = self._agree(secrets.token_hex(4))
        self._watch = HangWatch(self.world, self.settings.logs / f"hang-{token}", self.settings.hang_timeout)
        if not self._sees_ranks():
            self._watch.script_place = script_place
        self._seedings: list[AgreedSeeding] = []
        if self.world.size > 1:
            self._watch.start()
        several = self.world.size > 1 or self.witness.is_witness
        if several:
            self._seedings = same_randomness(self._agree, self._seed)
        self._clocks = AgreedClocks(self.world)
        hides_ranks = self.world.size > 1 and not self._sees_ranks()
        # The steps of a GPU go on, and may be in MPI, while the script reads a clock.
        agrees_clocks = (hides_ranks and self.gpu is None) or self.witness.is_witness
        if agrees_clocks:
            self._clocks.line = self._clock_line()
        if agrees_clocks or current_turns() is not None:
            self._clocks.install()
        if hides_ranks:
            self.rank_variables.hide(self.world.size)
            self.signals.install()
        self._own = OwnRows(self.settings)
        if several:
            self._own.install()
        if several:
            self.part_files()
            self._keep_children_apart()

    def end(self, status: str | int | None) -> None:
        """End the run of a script that has ended with `status`, as `sys.exit` takes it.

        Raises:
            RunError: that is the script's word for a failure.
            Refused: the script was refused something, and has caught that.
        """
        self.rank_variables.show()
        if isinstance(status, int) and status:
            raise RunError(f"the script ended with exit code {status}")
        if status:
            raise RunError(str(status))
        Refusals.check()
        self.witness.script_end()
        if not self.witness.is_witness:
            self._finish()
        self._watch.stop()

    def end_early(self, status: int) -> None:
        """End the run where the script ends its process by itself, with an exit code.

        Raises:
            SharedError, RunError: see `run`; they are shown where the ranks show theirs.
        """
        try:
            self.end(status)
        except BaseException:
            self._speak()
            raise

    def part_files(self) -> None:
        """Have every rank above 0, and the witness, write where no other looks; all of them, before the script runs.

        Raises:
            SharedError: one of them cannot.
        """
        if self._sees_ranks():
            return
        writes_apart = self.world.rank > 0 or self.witness.is_witness
        files = RankFiles()
        if writes_apart and not self.settings.shared_files:
            files = enter(self.script, self.settings.logs, keep=self._kept_name())
        ranks_files = self.world.comm.allgather(files)
        try:
            check_trees([files.refusal for files in ranks_files])
        except UserError as error:
            raise SharedError(error) from error
        self.witness.await_own_files()
        if writes_apart:
            OwnPorts().install()
        if self.world.rank == 0 and not self.witness.is_witness:
            self._tell_of_files(ranks_files[1:])

    def _kept_name(self) -> str:
        keeps = self.settings.keep_rank_files and not self.witness.is_witness
        return f"rank-{self.world.rank}" if keeps else ""

    def _tell_of_files(self, ranks_files: Sequence[RankFiles]) -> None:
        """Say what of the ranks' files is not apart, and where they are kept."""
        unfrozen = {folder: None for files in ranks_files for folder in files.unfrozen}
        read_only = {folder: None for files in ranks_files for folder in files.read_only}
        if self.settings.shared_files:
            self.file_notes = [Note(code=NoteCode.FILES_SHARED)]
        self.file_notes += [Note(code=NoteCode.FOLDER_SHOWS_CHANGES, values={"folder": name}) for name in unfrozen]
        self.file_notes += [Note(code=NoteCode.FOLDER_READ_ONLY, values={"folder": name}) for name in read_only]
        for note in self.file_notes:
            print(f"harness: {note}", file=sys.stderr, flush=True)
        if self.settings.keep_rank_files and not self.settings.shared_files:
            for rank, files in enumerate(ranks_files, start=1):
                print(f"harness: {kept_sentence(rank, files)}", file=sys.stderr, flush=True)

    def _clock_line(self) -> ClockLine | None:
        """Return this process's end of the line on which rank 0's clocks are heard; all ranks together."""
        if self.world.rank == 0 and not self.witness.is_witness:
            source = ClockSource(lambda: not self.witness.has_ended)
            self._agree(source.address)
            return source
        return hear(self._agree(None), is_witness=self.witness.is_witness)

    def _agree(self, value: Any) -> Any:
        """Return rank 0's `value`, also in the witness."""
        return self.witness.share(self.world.comm.bcast(value, root=0))

    def _keep_children_apart(self) -> None:
        """Keep child processes out of what the ranks do."""
        leave = [seeding.enter_child for seeding in self._seedings]
        ChildProcesses([*leave, self._clocks.put_back, self.signals.leave_ranks]).begin()
        if self.world.rank == 0 and not self.witness.is_witness:
            refuse_training_in_children(self.world, self.script.name, self.settings.logs, self._has_trained)

    def _has_trained(self) -> bool:
        return HorovodScript.active or (self.installed is not None and self.installed[0].synchronised)

    def wants_witness(self) -> bool:
        """Tell whether there is to be a witness."""
        is_wanted = self.world.size > 1 and not self.settings.unjudged
        is_excluded = excluder_of_witness(self.settings, int(self.gpu is not None))
        return is_wanted and not is_excluded and not self._sees_ranks()

    def _sees_ranks(self) -> bool:
        """Tell whether the script may see to its ranks itself."""
        return sees_ranks(self.script, sys.argv[1:])

    def _call_witness(self) -> None:
        """Start a witness on rank 0, on the cores of all ranks of its host: they wait for each other, and for it."""
        settings = self.settings
        places = self.world.comm.allgather(observe())
        cores = {core for place in places if place.host == places[0].host for core in place.cores}
        is_on_one_host = len({place.host for place in places}) == 1
        shares_import = is_on_one_host and not self._calls_mpi() and import_early(self.script)
        self.witness = (
            PeerRank(steps=STEPS if settings.witness == "first" else math.inf)
            if self.world.rank
            else start_witness(
                self.world,
                (settings, self.point, shares_import),
                self.script,
                settings.logs,
                cores,
                steps=STEPS if settings.witness == "first" else math.inf,
                patience_s=settings.hang_timeout / 2 or _PATIENCE_S,
                forked=partial(run_alone, lambda _: self.script) if shares_import else None,
            )
        )

    def _calls_mpi(self) -> bool:
        """Tell whether the script's own files name mpi4py: a process that is forked from a rank cannot call MPI."""
        own_files = chain.from_iterable(files for _, files in user_files(self.point.workload))
        return any(b"mpi4py" in file.read_bytes() for file in own_files)

    def _install(self) -> None:
        """Called once TensorFlow is there: put everything in place."""
        from harness.transparent.install import install

        start_gpu(self.gpu, alone=True)
        self.import_s = time.monotonic() - self.began
        threads = self.point.layout.threads
        self.installed = install(self._build, self._agree, script=self.script, threads=threads, seed=self._seed)
        if self.settings.record is not None:
            self._meter = EnergyMeter(self.world, self.gpu)

    def _build(self) -> "Runtime":
        from harness.transparent.runtime import Runtime

        runtime = Runtime.build(self.world, self.settings, self._watch, self._own, self.witness)
        runtime.collectives.counting = isinstance(self.witness, PeerRank)
        runtime.signals = self.signals
        runtime.sees_ranks = self._sees_ranks()
        self.signals.gather = runtime.collectives.gather
        self.signals.trains = lambda: runtime.synchronised
        self._clocks.steps = lambda: runtime.steps
        return runtime

    def _offer_horovod(self) -> None:
        """Let the script import Horovod; from its `init` on it divides its rows and we stand back."""
        from harness.horovod.aliases import offer
        from harness.horovod.ranks import host

        if has_own(self.script.parent, "horovod"):
            return

        def begin() -> None:
            import tensorflow as tf

            if HorovodScript.active:
                return
            self.witness.end()
            HorovodScript.active = self._own.present = True
            self.rank_variables.show()
            leave_own_files()
            for seeding in self._seedings:
                seeding.undo()
            if isinstance(tf.random.set_seed, AgreedSeeding):
                tf.random.set_seed.undo()

        host.watch = self._watch
        host.begin = begin
        host.answers = True
        host.sums = lambda: None if self.installed is None else self.installed[0].collectives
        offer()

    def _read_own_rate(self) -> None:
        """Look for the script's own rate in what it prints, where its record is to have it."""
        pattern = self.point.workload.own_rate
        if pattern and self.settings.record is not None:
            self._own_rate = OwnRate(pattern)
            self._own_rate.install()

    def explain(self, error: BaseException) -> BaseException:
        """Return what to show for an `error` of the script: with what divided batches have to do with it, if so."""
        if (refusal := refused_write(self.world.rank, error)) is not None:
            return refusal
        if self.installed is None or not isinstance(error, Exception) or self.installed[0].divided not in (1, 2):
            return error
        lines = str(error).strip().splitlines()
        return UserError(
            f"the script's step fails as soon as its batch has another number of rows ({type(error).__name__}: "
            f"{lines[0][:200] if lines else ''}): let its shapes, signatures and states follow the batch"
        )

    def _finish(self) -> None:
        from harness.transparent.horovod_replicas import compare_replicas

        if turns := current_turns():
            turns.finish()
        self.signals.meet()
        trained = self.installed is not None and self.installed[0].synchronised
        with self._watch.inside(END, 0):
            seen = self.world.comm.allgather(trained)
        if self.world.size > 1 and not any(seen) and not HorovodScript.active:
            raise SharedError(
                UserError(
                    f"{self.script.name} made no optimizer step that could be synchronised: train with a Keras or "
                    "TensorFlow optimizer, or run the script with -n 1"
                )
            )
        if self.installed is None:
            raise RunError("this rank never imported TensorFlow")
        self.witness.end()
        runtime, measured = self.installed
        self.note_missing_witness(runtime)
        sha256 = (compare_replicas(runtime) if HorovodScript.active else runtime.verify()) or ""
        if sha256 and self.world.size > 1 and self.world.rank == 0:
            print(f"replicas identical: yes (sha256 {sha256[:16]})", flush=True)
        if runtime.fusion is not None and runtime.fusion.count.fused and self.world.rank == 0:
            print(f"harness: {runtime.fusion.count}", file=sys.stderr, flush=True)
        if self.settings.record is not None:
            self._record(runtime, measured, sha256, self.settings.record)

    def note_missing_witness(self, runtime: "Runtime") -> None:
        """Note that a training on several ranks had no witness: its good end does not say that it was judged equal."""
        had_witness = isinstance(self.witness, PeerRank)
        if self.world.size > 1 and not had_witness and not HorovodScript.active:
            runtime.note(Note(code=NoteCode.NO_WITNESS))

    def _record(self, runtime: "Runtime", measured: "FitObservations", sha256: str, folder: Path) -> None:
        from harness.transparent.script_record import ScriptObservations, write_record

        reductions = runtime.collectives.reductions
        own_loop = []
        if not any(self.world.comm.allgather(bool(measured.epochs))):
            measured.measure_loop(runtime, self.point, self.batches_of_a_step())
            own_loop = [Note(code=NoteCode.OWN_LOOP)]
        factor = self.batches_of_a_step()
        seen = ScriptObservations(
            started=self.started,
            fit=measured,
            rows=sum(self.world.comm.allgather(measured.rows)) if self._own.present else measured.rows,
            global_batch=measured.batch * factor,
            sha256=sha256,
            reduction=reductions[-1] if reductions else None,
            notes=(
                *self.file_notes,
                *runtime.notes,
                *own_loop,
                *(note for reduction in reductions for note in reduction.notes),
            ),
            import_s=self.import_s,
            load_before=self.load_before,
            gpu=self.gpu,
            fused=0 if runtime.fusion is None else runtime.fusion.count.fused,
            own_rate=None if self._own_rate is None else self._own_rate.value,
            meter=self._meter,
        )
        write_record(self.world, self.point, seen, folder)
        if self.world.rank == 0:
            print(f"record: {folder}", flush=True)

    def batches_of_a_step(self) -> int:
        """Return how many of the script's batches all ranks take in a step."""
        return self.world.size if self.settings.batch == "per-rank" or HorovodScript.active else 1


def run_alone(prepare: Callable[[Point], Path]) -> None:
    """Be the witness that rank 0 of a launch has started: run the script that `prepare` returns, alone.

    Where rank 0 has imported TensorFlow early, so does the witness: libraries that are imported seed generators, and
    rank 0's seeds come in the order in which it was asked for them.
    """
    witness, (settings, point, imports_early) = enter_witness()
    script = prepare(point)
    if imports_early:
        import_early(script)
    session = Session(
        world=World(comm=Alone(), rank=0, size=1),  # type: ignore[arg-type]
        settings=settings,
        script=script,
        point=point,
        began=time.monotonic(),
        witness=witness,
    )
    end_at_exec(witness.end)
    session.run()
