"""Child processes of a rank are no ranks: nothing is exchanged in them, and what is replaced is put back."""

import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.base.errors import UserError
from harness.base.removal import remove_file
from harness.comm.world import World, abort
from harness.transparent.child.sitecustomize import MARK, NO_MARK, watch
from harness.transparent.patch import ImportHook, put_back

PAUSE_S = 0.5
"""Between two looks for a child that trains."""
_SITE = Path(__file__).with_name("child")


class ChildProcesses:
    """The children that a rank forks from `begin` on, and those that it starts anew.

    `leave`: what else a forked child does first, to be no rank.
    """

    def __init__(self, leave: Sequence[Callable[[], None]]) -> None:
        self._leave = leave

    def begin(self) -> None:
        """Have forked children put back what is replaced, and new Pythons forget what a launcher has told the rank."""
        os.environ[MARK] = NO_MARK
        places = [str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(places)
        os.register_at_fork(after_in_child=self.begin_child)

    def begin_child(self) -> None:
        """Be no rank any more: what a forked child does first."""
        put_back()
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ImportHook)]
        for action in self._leave:
            action()
        if os.environ.get(MARK, NO_MARK) != NO_MARK:
            watch(os.environ[MARK])


def refuse_training_in_children(world: World, script: str, folder: Path, has_trained: Callable[[], bool]) -> None:
    """End all ranks with a sentence when a child of this one, rank 0, trains before the rank itself does.

    `folder` has the file that tells of it meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".child-trains-{os.getpid()}"
    os.environ[MARK] = str(mark.absolute())

    def look() -> None:
        while not has_trained():
            if mark.exists():
                remove_file(mark)
                abort(
                    world,
                    UserError(
                        f"{script} trains in child processes, which are no ranks: each rank's would train the same, "
                        "alone; train in the script itself, or run it with -n 1"
                    ),
                )
            time.sleep(PAUSE_S)
        os.environ[MARK] = NO_MARK

    threading.Thread(target=look, daemon=True).start()


def child_seed(seed: int) -> int:
    """Return what seeds a generator of a child process whose script asks for none: the same on all ranks."""
    place = ".".join(map(str, getattr(multiprocessing.current_process(), "_identity", ())))
    return random.Random(f"{seed} {place}").randrange(2**32)
