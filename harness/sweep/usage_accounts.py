"""What the jobs of a sweep have used, asked of its scheduler and kept in its folder."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.schema.job_usage import Account
from harness.schema.record import encode, read_accounts
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.schedulers import Scheduler
from harness.sweep.unsettled_launches import Running

_PATIENCE_S = 10.0  # a job ends, and is accounted for, a little after its launches
_LOG = logging.getLogger(__name__)


def note_ended(files: SweepFolder, ended: Sequence[Running]) -> None:
    """Keep that the launches `ended` are over and their jobs to be asked for."""
    if ended:
        new = [Account(job=over.job, scheduler=over.scheduler, launch=over.point.folder) for over in ended]
        write_atomic(files.accounts, encode((*read_accounts(files), *new)))


def ask_accounts(files: SweepFolder, scheduler: Scheduler) -> None:
    """Ask for every job of the sweep of `files` that is over and not known; one that is not found is asked for again.

    Accounting is no reason to fail: a scheduler that does not answer is asked by the next command.
    """
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while not _ask(files, scheduler) and time.monotonic() < deadline:
            time.sleep(scheduler.poll_s)
    except UserError as error:
        _LOG.warning("the next command asks for accounting again: %s", error)


def _ask(files: SweepFolder, scheduler: Scheduler) -> bool:
    """Ask once, and return whether nothing is left to be asked for."""
    accounts = read_accounts(files)
    wanted = [
        account
        for account in accounts
        if account.usage is None and not account.missing and account.scheduler == scheduler.name
    ]
    if not wanted:
        return True
    usages = scheduler.account(sorted({account.job for account in wanted}))
    if isinstance(usages, str):
        answered = {account: replace(account, missing=usages) for account in wanted}
    else:
        answered = {account: replace(account, usage=usages[account.job]) for account in wanted if account.job in usages}
    if answered:
        completed = tuple(answered.get(account, account) for account in accounts)
        write_atomic(files.accounts, encode(completed))
    return len(answered) == len(wanted)
