"""Ask the scheduler's accounting what ended jobs used; it is kept beside the records, which stay as they are."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.schema.record import encode, read_accounts
from harness.schema.sweep import ACCOUNTS_FILE, Account
from harness.sweep.scheduler import Scheduler
from harness.sweep.store import Running

_PATIENCE_S = 10.0  # a job ends, and is accounted for, a little after its launches
_LOG = logging.getLogger(__name__)


def note_ended(folder: Path, ended: Sequence[Running]) -> None:
    """Keep that the launches `ended` are over and their jobs to be asked for."""
    if ended:
        new = [Account(job=one.job, scheduler=one.scheduler, launch=one.point.folder) for one in ended]
        write_atomic(folder / ACCOUNTS_FILE, encode((*read_accounts(folder), *new)))


def ask_accounts(folder: Path, scheduler: Scheduler) -> None:
    """Ask for every job of the sweep in `folder` that is over and not known; one that is not found is asked for again.

    Accounting is no reason to fail: a scheduler that does not answer is asked by the next command.
    """
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while not _ask(folder, scheduler) and time.monotonic() < deadline:
            time.sleep(scheduler.poll_s)
    except UserError as error:
        _LOG.warning("accounting is asked for by the next command: %s", error)


def _ask(folder: Path, scheduler: Scheduler) -> bool:
    """Ask once, and tell whether nothing is left to be asked for."""
    accounts = read_accounts(folder)
    wanted = [one for one in accounts if one.usage is None and not one.missing and one.scheduler == scheduler.name]
    if not wanted:
        return True
    found = scheduler.account(sorted({one.job for one in wanted}))
    if isinstance(found, str):
        known = {one: replace(one, missing=found) for one in wanted}
    else:
        known = {one: replace(one, usage=found[one.job]) for one in wanted if one.job in found}
    if known:
        write_atomic(folder / ACCOUNTS_FILE, encode(tuple(known.get(one, one) for one in accounts)))
    return len(known) == len(wanted)
