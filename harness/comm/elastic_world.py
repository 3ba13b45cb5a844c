"""All processes of a launch that outlives some of them, by the fault tolerance of the MPI library (ULFM, MPI 5).

Whoever meets a failure revokes the communicator, so that everyone else's calls fail too; all that live agree that the
attempt failed, shrink the communicator, take slots in it and begin the next attempt. An attempt ends by one agreement,
never earlier: what a call says on one rank it need not say on another.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import psutil

from harness.base.errors import RunError, UserError
from harness.base.exit_codes import HANG
from harness.base.removal import remove_file
from harness.base.scratch import of_process, remove_dead
from harness.base.setting_names import setting
from harness.comm.hang import end_late, end_launcher_later, is_asked
from harness.comm.lost_ranks import find_loss, forget_losses
from harness.comm.native_library import find_library
from harness.comm.world import FAULT_TOLERANCE, World
from harness.schema.record import LossReason

if TYPE_CHECKING:
    from mpi4py import MPI


T = TypeVar("T")

_RUNNING = 4  # times the patience with a stopped rank for those that run and do not come: they may be compiling
_SILENT = 2  # times it for a silent host: stopped ranks are ended there by then
_STOPPED_POLL_S = 0.25  # between looks at whether others are stopped
_POLL_S = 0.001  # between looks at an agreement, of its every round: who trains waits for that
_NOTICE_S = 2.0  # for MPI to learn of a failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One process. `slot` is its rank among those that train; slot 0 reports and writes.

    Process `pid` of its host `began` at that time (s) and would leave the file `segment` in shared memory.
    """

    slot: int
    host: str
    pid: int
    began: float
    segment: str = ""

    def end(self) -> None:
        """Kill this process of this host, if it is still there."""
        with contextlib.suppress(psutil.NoSuchProcess):  # another process of the same number has begun later
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.began) < 1:  # processes may differ in when the host was started
                process.kill()


@dataclass(frozen=True, kw_only=True, slots=True)
class MembershipChange:
    """What a failure made of the slots: members that `failed`, and the old slot of every one that is taken now."""

    failed: tuple[Member, ...]
    old_slots: tuple[int, ...]


def assign_slots(before: Sequence[Member], now: Sequence[Member]) -> tuple[list[Member], MembershipChange]:
    """Return the members with their new slots, in the order of `now`, and what has changed since `before`.

    Those that are left move up: slots are without a gap, and members keep their order.
    """
    alive = {(member.host, member.pid) for member in now}
    failed = [member for member in before if (member.host, member.pid) not in alive]
    taken = sorted(member.slot for member in now)
    members = [replace(member, slot=taken.index(member.slot)) for member in now]
    return members, MembershipChange(failed=tuple(failed), old_slots=tuple(taken))


class Team:
    """The processes of a launch; every process has its own object.

    `folder` is where their watches meet (`harness.comm.hang`).
    """

    def __init__(self, comm: "MPI.Intracomm", patience_s: float, folder: Path) -> None:
        rank = comm.Get_rank()
        self.comm = comm
        self.patience_s = patience_s
        self.folder = folder
        self.member = Member(
            slot=rank,
            host=os.uname().nodename,
            pid=os.getpid(),
            began=psutil.Process().create_time(),
            segment=_own_segment(),
        )
        self.members: tuple[Member, ...] = ()
        self.world: World | None = None
        self.complete = True  # no attempt has failed yet
        if patience_s:
            threading.Thread(target=self._end_stopped_ranks, name="harness-stopped", daemon=True).start()

    @property
    def trainers(self) -> list[Member]:
        """Those that train, by their slots."""
        return sorted(self.members, key=lambda member: member.slot)

    @property
    def silence_s(self) -> float:
        """The seconds of silence after which the network counts as broken, 0 for never: where all are on one host."""
        return _SILENT * self.patience_s if len({member.host for member in self.members}) > 1 else 0.0

    def form(self, knowledge: T) -> tuple[MembershipChange, list[T]] | None:
        """Take slots and exchange all members' `knowledge`; all together. None where one failed meanwhile."""
        try:
            with self._limited("taking slots"):
                now, all_knowledge = zip(*self.comm.allgather((self.member, knowledge)), strict=True)
                members, change = assign_slots(self.members or now, now)
                member = members[self.comm.Get_rank()]
                comm = cast("MPI.Intracomm", self.comm.Split(0, member.slot))
        except Exception as error:
            if find_loss(error) is None and not _has_failed(self.comm):
                raise
            self.comm.Revoke()
            self._agree(well=False)
            return None
        if not self._agree(well=True):
            return None
        self.members = tuple(members)
        self.member = member
        self.world = World(comm=comm, rank=comm.Get_rank(), size=comm.Get_size())
        # Sums in shared memory fail as soon as a rank dies, without leaving its launcher a second to end all ranks;
        # or lives and does not come for so long: on several hosts it may itself wait for another host.
        forget_losses(0 if self.silence_s else _RUNNING * self.patience_s)
        return change, list(all_knowledge)

    def ended(self, error: BaseException | None) -> bool:
        """Tell whether the attempt is over on all members; `error` is the failure that ended it on this one, if so."""
        if error is not None:
            loss = find_loss(error)
            if loss is not None and loss.reason is LossReason.LATE and loss.rank is not None:
                self._end_late(self.trainers[loss.rank])
            assert self.world is not None
            self.world.comm.Revoke()  # so that every other rank's calls fail too
            library = find_library().library
            if library is not None:  # all sums of all groups that this rank is in fail, on all their ranks
                library.functions.harness_give_up()
        return self._agree(well=error is None)

    def confirm(self) -> None:
        """Make sure that nobody failed so far; all that train together.

        Called after taking from others what cannot be checked: where a rank dies in its middle, Open MPI 5.0's
        allgather was seen to return without an error and with something else.

        Raises:
            MPI.Exception: somebody did.
        """
        assert self.world is not None
        with self._limited("agreeing that nobody failed"):
            self.world.comm.Agree(1)

    def failed(self) -> bool:
        """Tell whether MPI knows of a failure among those that train."""
        return self.world is not None and _has_failed(self.world.comm)

    def shrink(self) -> None:
        """Go on with those that live, without the groups of the attempt that has failed."""
        self.complete = False
        library = find_library().library
        if library is not None:  # with threads and shared memory: all ranks have come out of them
            library.functions.harness_close_all()
        with self._limited("shrinking"):
            self.comm = cast("MPI.Intracomm", self.comm.Shrink())

    def clean_up(self, failed: Sequence[Member]) -> None:
        """Remove what failed members of this host have left in shared memory, and their own folders there.

        That is the memory of a group that was being opened, and MPI's.
        """
        for member in failed:
            if member.host == self.member.host:
                paths = [*Path("/dev/shm").glob(f"harness-{member.pid}-*")]
                if member.segment:
                    paths.append(Path(member.segment))
                for path in paths:
                    remove_file(path)
        remove_dead()

    def leave(self) -> None:
        """Remove this process's own files; it ends without MPI's help."""
        self.clean_up([self.member])
        of_process().close()

    def _agree(self, *, well: bool) -> bool:
        """Return whether all members say `well` and none has failed; the same on all."""
        from mpi4py import MPI

        flag = np.array([well], np.intc)
        try:
            with self._limited("agreeing on who is left"):
                request = self.comm.Iagree(flag)
                while not request.Test():
                    time.sleep(_POLL_S)
        except MPI.Exception as error:
            if find_loss(error) is None:
                raise
            return False
        return bool(flag[0])

    @contextlib.contextmanager
    def _limited(self, doing: str) -> Iterator[None]:
        """End this process where the block takes so long that the network to another host must be broken."""
        timer = threading.Timer(self.silence_s, self._end_silent, [doing])
        if self.silence_s:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end_silent(self, doing: str) -> None:
        who = f"harness: rank {self.member.slot} on {self.member.host}"
        what = f"nothing heard of another host for {self.silence_s:g} s while {doing}"
        os.write(2, f"{who}: {what}: the network is broken or a host is gone; start it again\n".encode())
        end_launcher_later()
        os._exit(HANG)

    def _end_late(self, member: Member) -> None:
        """Kill a rank of this host that lives and does not come: MPI would wait for it without end.

        Raises:
            RunError: it is on another host.
        """
        if member.host != self.member.host:
            raise RunError(
                f"rank {member.slot} on {member.host}, process {member.pid}, lives and does not come: it can only be "
                "ended from its own host; end the launch and start it again"
            )
        member.end()

    def _end_stopped_ranks(self) -> None:
        """End ranks of this host that stay stopped: they live, so that MPI waits for them without end.

        And this process where another's watch asks for it: it may wait in a call that is not watched.
        """
        stopped: dict[int, float] = {}
        while True:
            time.sleep(_STOPPED_POLL_S)
            if self.silence_s and is_asked(self.folder):
                end_late(self.folder, apart=True)
            for member in self.members:
                if member.host != self.member.host or not _is_stopped(member.pid):
                    stopped.pop(member.pid, None)
                elif time.monotonic() - stopped.setdefault(member.pid, time.monotonic()) > self.patience_s:
                    member.end()


def _has_failed(comm: "MPI.Intracomm") -> bool:
    """Tell whether MPI reports that a rank of `comm` has failed; it has a moment to learn of it."""
    end = time.monotonic() + _NOTICE_S
    while True:
        failed = comm.Is_revoked() or comm.Get_failed().Get_size() > 0
        if failed or time.monotonic() >= end:
            return failed
        time.sleep(_POLL_S)


def _own_segment() -> str:
    """Return the file in which Open MPI keeps what others of the host send to this process, empty without one."""
    end = f".{os.environ.get('OMPI_COMM_WORLD_LOCAL_RANK')}"
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    return next((name for name in mapped if "/sm_segment." in name and name.endswith(end)), "")


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


def check_library(action: str) -> None:
    """Check that a rank can fail without ending all others.

    Raises:
        UserError: the MPI library has no fault tolerance, or it is not switched on.
    """
    from mpi4py import MPI

    how = f"{setting('on_failure', action)} needs Open MPI 5 started by 'mpirun --with-ft ulfm'"
    if not MPI.Get_library_version().startswith("Open MPI v5"):
        library = MPI.Get_library_version().splitlines()[0]
        raise UserError(f"{how}, but ranks here load {library}: use {setting('on_failure', 'abort')}")
    if os.environ.get(FAULT_TOLERANCE, "").lower() not in ("1", "true"):
        raise UserError(f"{how}: start it so, or use {setting('on_failure', 'abort')}")
