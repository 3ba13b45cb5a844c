"""How a sweep is launched: scheduler, site, request and template; and the command that goes on with it."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import write_atomic
from harness.base.record_words import LINE, check_text
from harness.schema.command_lines import Words, changed_values, changed_words, harness_command
from harness.schema.record import decode_file, encode
from harness.schema.sweep import USUAL_WIDTH, Sweep
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.schedulers import Scheduler, open_scheduler
from harness.sweep.site import JobRequest, Site


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """Scheduler (never ``auto``), site, request, the user's own template and the folder of the originals.

    `site_file` is the site's name or file where the user named one. A job in turns goes on for at most `most_blocks`
    blocks, until half the width of the speedups' intervals is `width` (of the logarithm); 0: it makes those that are
    asked for.
    """

    scheduler: str = "local"
    site: Site = field(default_factory=Site)
    request: JobRequest = field(default_factory=JobRequest)
    template: str | None = None
    data_dir: str | None = None
    site_file: str | None = None
    most_blocks: int = 0
    width: float = USUAL_WIDTH

    def __post_init__(self) -> None:
        check_text("scheduler", self.scheduler)
        for field_name in ("template", "data_dir", "site_file"):
            check_text(field_name.replace("_", " "), getattr(self, field_name) or "", LINE, optional=True)

    @property
    def in_turns(self) -> bool:
        """Whether all layouts of a repeat train in turns."""
        return self.request.mode == "turns"

    def open(self, *, oversubscribe: bool) -> Scheduler:
        """Return the scheduler; raise a UserError if it is not usable here, or does not know what is asked for."""
        return open_scheduler(self.scheduler, oversubscribe=oversubscribe, site=self.site, request=self.request)


def write_submission(files: SweepFolder, submission: Submission) -> None:
    """Keep how the sweep of `files` is launched; raise a UserError if the folder cannot be written to."""
    write_atomic(files.submission, encode(submission))


def read_submission(files: SweepFolder) -> Submission:
    """Return how the sweep of `files` was launched last; raise a UserError if the file is missing or damaged."""
    submission = decode_file(files.submission, Submission)
    if submission is None:
        raise UserError(f"'{files.path}' does not say how it was launched: give the sweep command again")
    return submission


def next_command(folder: Path, sweep: Sweep) -> str:
    """Return the ``harness sweep`` lines that go on with `sweep`, launched as it was last; empty if that is not known.

    They take in what has ended, and launch again what failed, is missing or has no valid times.
    """
    try:
        submission = read_submission(SweepFolder(folder))
    except UserError:
        return ""
    words: Words = [("SCHEDULER", submission.scheduler)]
    if submission.site_file:
        words.append(("SITE", submission.site_file))
    words += changed_words(_as_asked(submission), submission.site.request)
    if submission.template:
        words.append(("TEMPLATE", submission.template))
    if submission.data_dir:
        words.append(("DATA_DIR", submission.data_dir))
    if folder.parent != Path("results"):
        words.append(("RESULTS", folder.parent))
    return harness_command(sweep, words)


def where_settings(submission: Submission) -> dict[str, object]:
    """Return the settings of ``[where]`` in the study's file of a sweep that was launched by `submission`."""
    settings: dict[str, object] = {"scheduler": submission.scheduler}
    if submission.site_file:
        settings["site"] = submission.site_file
    for name, value, _ in changed_values(_as_asked(submission), submission.site.request):
        settings[name.replace("_", "-")] = value
    if submission.template:
        settings["template"] = submission.template
    return settings


def _as_asked(submission: Submission) -> JobRequest:
    """Return the request without the mode that a command has by itself."""
    request = submission.request
    usual = "jobs" if submission.template or request.requeue or request.signal_s else "turns"
    return replace(request, mode="") if request.mode == usual else request
