"""How a sweep's launches are started: kept beside it, so that any terminal can go on with it."""

from dataclasses import dataclass, field
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.schema.record import decode, encode
from harness.sweep.job_options import Request
from harness.sweep.scheduler import Scheduler
from harness.sweep.schedulers import open_scheduler
from harness.sweep.site import Site

SUBMISSION_FILE = "submission.json"  # results/<sweep>/submission.json


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """Scheduler (never ``auto``), site, request, the user's own template and the folder of the originals."""

    scheduler: str = "local"
    site: Site = field(default_factory=Site)
    request: Request = field(default_factory=Request)
    template: str | None = None
    data_dir: str | None = None

    def open(self, *, oversubscribe: bool) -> Scheduler:
        """Return the scheduler.

        Raises:
            UserError: it is not usable here, or does not know what the request asks for.
        """
        return open_scheduler(self.scheduler, oversubscribe=oversubscribe, site=self.site, request=self.request)

    @property
    def data_path(self) -> Path | None:
        """The folder of the original data files."""
        return Path(self.data_dir) if self.data_dir is not None else None


def write_submission(folder: Path, submission: Submission) -> None:
    """Keep how the sweep in `folder` is launched.

    Raises:
        UserError: the folder cannot be written to.
    """
    write_atomic(folder / SUBMISSION_FILE, encode(submission))


def read_submission(folder: Path) -> Submission:
    """Return how the sweep in `folder` was launched last.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = folder / SUBMISSION_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"'{folder}' does not say how it was launched: give the sweep command again") from None
    return decode(content, Submission, path)
