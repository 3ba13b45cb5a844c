"""All processes of a launch that outlives some of them, by the fault tolerance of the MPI library (ULFM, MPI 5).

Whoever meets a failure revokes, so that everyone else's calls fail too; all that live agree that the attempt failed,
shrink the communicator, take seats in it and begin the next attempt. An attempt ends by one agreement, never earlier:
what a call says on one rank it need not say on another.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import psutil

from harness.base.errors import RunError, UserError
from harness.base.hostlock import of_process, remove_dead
from harness.comm.autotune import build_native
from harness.comm.hang import EXIT_CODE, REQUEST, end_late, end_launcher_later
from harness.comm.native.operation import give_up, outlive
from harness.comm.world import FAULT_TOLERANCE, World

if TYPE_CHECKING:
    from mpi4py import MPI


T = TypeVar("T")

_RUNNING = 4  # times the patience with a stopped rank have those that run and do not come: they may be compiling
_SILENT = 2  # times it has another host that nothing is heard of: stopped ranks are ended there by then
_LOOK_S = 0.25  # between looks at whether others are stopped
_POLL_S, _IDLE_POLL_S = 0.001, 0.01  # between looks at an agreement, of its every round: who trains waits for that
_HEARSAY_S = 2.0
_SIGN = re.compile(r"MPI_ERR_(PROC_FAILED|REVOKED)\b|harness: lost rank[^\n]*")
_LATE = re.compile(r"harness: lost rank (\d+): it lives")


def lost(error: BaseException) -> bool:
    """Tell whether `error` says that a rank was lost: MPI's own, or TensorFlow's around it or around a native sum's."""
    return bool(sign_of(error))


def sign_of(error: BaseException) -> str:
    """Return the words in `error` that say so, empty where there are none."""
    found = _SIGN.search(str(error))
    return found[0] if found else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One process. `seat` is its number among those that train, from 0; None is a spare. `seat` 0 tells and writes.

    `share` is its part of the rows, in relation to the others'; process `pid` of its host `began` at that time (s) and
    would leave the file `segment` in shared memory.
    """

    seat: int | None
    share: int
    host: str
    pid: int
    began: float
    segment: str = ""

    def end(self) -> None:
        """Kill this process of this host, if it is there yet."""
        with contextlib.suppress(psutil.NoSuchProcess):  # a number that was given again begins later: not looked for
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.began) < 1:  # processes may differ in when the host was started
                process.kill()


@dataclass(frozen=True, kw_only=True, slots=True)
class MembershipChange:
    """What a shrinking made of the seats: members that were `lost`, and the old seat of every one that is taken."""

    lost: tuple[Member, ...]
    kept: tuple[int, ...]


def reseat(before: Sequence[Member], now: Sequence[Member]) -> tuple[list[Member], MembershipChange]:
    """Return the members with their new seats, in the order of `now`, and what has changed since `before`.

    Spares take the seats of lost ranks. Where they do not suffice the others move up: seats are without a gap, and
    those that stay keep their order.
    """
    alive = {(member.host, member.pid) for member in now}
    gone = [member for member in before if (member.host, member.pid) not in alive]
    vacant = [member for member in gone if member.seat is not None]
    spares = [index for index, member in enumerate(now) if member.seat is None]
    seated = list(now)
    for index, old in zip(spares, vacant, strict=False):
        seated[index] = replace(seated[index], seat=old.seat, share=old.share)
    old_seats = sorted(member.seat for member in seated if member.seat is not None)
    numbers = {old: new for new, old in enumerate(old_seats)}
    members = [member if member.seat is None else replace(member, seat=numbers[member.seat]) for member in seated]
    return members, MembershipChange(lost=tuple(gone), kept=tuple(old_seats))


class Team:
    """The processes of a launch, those that train and the spares behind them; every process has its own.

    `folder` is where their watches meet (`harness.comm.hang`).
    """

    def __init__(self, comm: "MPI.Intracomm", shares: Sequence[int], patience_s: float, folder: Path) -> None:
        rank = comm.Get_rank()
        trains = rank < len(shares)
        self.comm = comm
        self.patience_s = patience_s
        self.folder = folder
        self.own = Member(
            seat=rank if trains else None,
            share=shares[rank] if trains else 0,
            host=os.uname().nodename,
            pid=os.getpid(),
            began=psutil.Process().create_time(),
            segment=_own_segment(),
        )
        self.members: tuple[Member, ...] = ()
        self.world: World | None = None
        self.whole = True  # no attempt has failed yet
        self._stopped: dict[int, float] = {}
        if patience_s:
            threading.Thread(target=self._look, name="harness-stopped", daemon=True).start()

    @property
    def seated(self) -> list[Member]:
        """Those that train, by their seats."""
        return sorted((m for m in self.members if m.seat is not None), key=lambda member: member.seat or 0)

    @property
    def silence_s(self) -> float:
        """The seconds after which the network is held for broken, 0 for never: where all are on one host."""
        return _SILENT * self.patience_s if len({member.host for member in self.members}) > 1 else 0.0

    def form(self, news: T) -> tuple[MembershipChange, list[T]] | None:
        """Take seats and hear all members' `news`; all together. None where one was lost meanwhile."""
        try:
            with self._heard("taking seats"):
                now, heard = zip(*self.comm.allgather((self.own, news)), strict=True)
                members, change = reseat(self.members or now, now)
                own = members[self.comm.Get_rank()]
                world = self._world(own)
        except Exception as error:
            if not lost(error) and not _knows_a_loss(self.comm):
                raise
            self.comm.Revoke()
            self._agree(well=False)
            return None
        if not self._agree(well=True):
            return None
        self.members, self.own, self.world = tuple(members), own, world
        if library := build_native()[0]:  # on several hosts the awaited rank may itself wait for another host
            outlive(library, 0 if self.silence_s else _RUNNING * self.patience_s)
        return change, list(heard)

    def _world(self, own: Member) -> World | None:
        from mpi4py import MPI

        comm: Any = self.comm.Split(MPI.UNDEFINED if own.seat is None else 0, own.seat or 0)
        return None if comm == MPI.COMM_NULL else World(comm=comm, rank=comm.Get_rank(), size=comm.Get_size())

    def ended(self, error: BaseException | None) -> bool:
        """Tell whether the attempt is over on all members; `error` is the loss that ended it on this one, if so.

        A spare waits here for those that train, without the core that they need.
        """
        if error is not None:
            self._give_up(error)
        return self._agree(well=error is None)

    def confirm(self) -> None:
        """Make sure that nobody was lost so far; all that train together.

        Behind what is taken from others as it is: where a rank dies in its middle, Open MPI 5.0's allgather was seen to
        return without an error and with something else.

        Raises:
            MPI.Exception: somebody was.
        """
        assert self.world is not None
        with self._heard("agreeing that nobody is lost"):
            self.world.comm.Agree(1)

    def broken(self) -> bool:
        """Tell whether MPI knows of a loss among those that train."""
        return self.world is not None and _knows_a_loss(self.world.comm)

    def shrink(self) -> None:
        """Go on with those that live."""
        self.whole = False
        with self._heard("shrinking"):
            self.comm = cast("MPI.Intracomm", self.comm.Shrink())

    def _agree(self, *, well: bool) -> bool:
        """Return whether all members say `well` and none has been lost; the same on all."""
        from mpi4py import MPI

        flag, waits = np.array([well], np.intc), self.own.seat is None and well
        try:
            with contextlib.nullcontext() if waits else self._heard("agreeing on who is left"):
                request = self.comm.Iagree(flag)
                while not request.Test():
                    time.sleep(_IDLE_POLL_S if self.own.seat is None else _POLL_S)
        except MPI.Exception as error:
            if not lost(error):
                raise
            return False
        return bool(flag[0])

    def _give_up(self, error: BaseException) -> None:
        """Have every other rank's calls fail too, and end a rank that lives and does not come."""
        late = _LATE.search(str(error))
        if late is not None:
            self._end(self.seated[int(late[1])])
        assert self.world is not None
        self.world.comm.Revoke()
        library = None if os.environ.get("HARNESS_REDUCTION") == "bridge" else build_native()[0]
        if library is not None:
            give_up(library)

    @contextlib.contextmanager
    def _heard(self, doing: str) -> Iterator[None]:
        """End this process where the block takes so long that the network to another host must be broken."""
        timer = threading.Timer(self.silence_s, self._leave, [doing])
        if self.silence_s:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _leave(self, doing: str) -> None:
        rank = self.own.seat if self.own.seat is not None else "(spare)"
        said = f"harness: rank {rank} on {self.own.host}: nothing heard of another host for {self.silence_s:g} s while "
        os.write(2, f"{said}{doing}: the network is broken or a host is gone; start it again\n".encode())
        end_launcher_later()
        os._exit(EXIT_CODE)

    def _end(self, member: Member) -> None:
        """Kill a rank of this host: MPI would wait for it for ever.

        Raises:
            RunError: it is on another host.
        """
        if member.host != self.own.host:
            raise RunError(
                f"rank {member.seat} on {member.host}, process {member.pid}, lives and does not come: it can only be "
                "ended from its own host; end the launch and start it again"
            )
        member.end()

    def _look(self) -> None:
        """End ranks of this host that stay stopped: they live, so that MPI waits for them for ever.

        And this process where another's watch asks for it: a spare waits in nothing that is watched.
        """
        while True:
            time.sleep(_LOOK_S)
            if self.silence_s and (self.folder / REQUEST).exists():
                end_late(self.folder, apart=True)
            for member in self.members:
                if member.host != self.own.host or not _is_stopped(member.pid):
                    self._stopped.pop(member.pid, None)
                elif time.monotonic() - self._stopped.setdefault(member.pid, time.monotonic()) > self.patience_s:
                    member.end()

    def sweep_up(self, gone: Sequence[Member]) -> None:
        """Remove what lost members of this host have left in shared memory: a group's that was being opened, MPI's.

        And their own folders there, which nobody holds any more.
        """
        for member in gone:
            if member.host == self.own.host:
                left = [*Path("/dev/shm").glob(f"harness-{member.pid}-*")]
                for path in [*left, Path(member.segment)] if member.segment else left:
                    path.unlink(missing_ok=True)
        remove_dead()

    def leave(self) -> None:
        """Remove this process's own, which ends without MPI's."""
        self.sweep_up([self.own])
        of_process().close()


def _knows_a_loss(comm: "MPI.Intracomm") -> bool:
    """Tell whether one of `comm` is known to be lost; MPI has a moment to hear of it."""
    end = time.monotonic() + _HEARSAY_S
    while not (known := comm.Is_revoked() or comm.Get_failed().Get_size() > 0) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return known


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
    """Check that ranks can be lost without the end of all.

    Raises:
        UserError: the MPI library has no fault tolerance, or it is not switched on.
    """
    from mpi4py import MPI

    how = f"ON_FAILURE={action} needs Open MPI 5 started by 'mpirun --with-ft ulfm'"
    if not MPI.Get_library_version().startswith("Open MPI v5"):
        raise UserError(f"{how}, but ranks here load {MPI.Get_library_version().splitlines()[0]}: use ON_FAILURE=abort")
    if os.environ.get(FAULT_TOLERANCE, "").lower() not in ("1", "true"):
        raise UserError(f"{how}: start it so, or use ON_FAILURE=abort")
