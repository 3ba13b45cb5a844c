"""Where everything of a sweep lies on disk: no other module knows the names of these files and folders."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.base.record_words import below
from harness.base.removal import make_place, remove_empty_folder, remove_file, remove_left

RUN_FILE = "run.json"
MADE_HERE = '<meta name="generator" content="mpi-tf-harness">'  # in every page
STEPS_FILE = "steps.parquet"
STUDY_FILE = "sweep.json"
CHECKPOINT_SUFFIX = ".ckpt"
ATTEMPTS_FILE = "attempts.json"  # beside the checkpoints: what every attempt at the launch has trained


@dataclass(frozen=True, slots=True)
class LaunchFolder:
    """The files of one launch, whose record is or will be in the folder `path`: ``results/<sweep>/<launch>``."""

    path: Path

    @property
    def record(self) -> Path:
        """What the launch was and what came out of it; written last, with the whole folder."""
        return self.path / RUN_FILE

    @property
    def steps(self) -> Path:
        """The table of every step of every rank."""
        return self.path / STEPS_FILE

    @property
    def is_recorded(self) -> bool:
        """Whether there is a record, whole or not."""
        return self.record.exists()

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints, until it has come to its end."""
        return SweepFolder(self.path.parent).checkpoints / self.path.name

    @property
    def has_checkpoint(self) -> bool:
        """Whether it has left a checkpoint, whole or not."""
        return bool(checkpoint_files(self.checkpoints))

    def forget_checkpoints(self) -> None:
        """Remove all its checkpoints: it has come to its end."""
        folder = self.checkpoints
        if folder.is_symlink() or folder.parent.is_symlink():  # it leads to somebody's own
            return
        remove_left(folder)
        for file in (*checkpoint_files(folder), folder / ATTEMPTS_FILE):
            remove_file(file)
        remove_empty_folder(folder)
        remove_empty_folder(folder.parent)  # other launches may have theirs there


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """The files of one sweep, ``results/<sweep>``; a launch is named by its point's folder."""

    path: Path

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.path.name

    @property
    def study(self) -> Path:
        """What the last command asked of the sweep."""
        return self.path / STUDY_FILE

    @property
    def submission(self) -> Path:
        """How the last command launched it."""
        return self.path / "submission.json"

    @property
    def running(self) -> Path:
        """The launches that are submitted and not settled."""
        return self.path / "running.json"

    @property
    def accounts(self) -> Path:
        """What the jobs that are over have used."""
        return self.path / "accounts.json"

    @property
    def lock(self) -> Path:
        """Locked by the command that works on the sweep."""
        return self.path / ".lock"

    @property
    def submitting(self) -> Path:
        """Open, and locked, in every process that submits a job."""
        return self.path / ".submitting"

    @property
    def jobs(self) -> Path:
        """The folder of scripts, of what they read, and of exit codes."""
        return self.path / "jobs"

    @property
    def logs(self) -> Path:
        """The folder of what launches and jobs print."""
        return self.path / "logs"

    @property
    def rounds(self) -> Path:
        """The folder of the turns of blocks."""
        return self.path / "rounds"

    @property
    def failures(self) -> Path:
        """The folder of the reasons why launches failed."""
        return self.path / "failures"

    @property
    def replaced(self) -> Path:
        """The folder of records that did not count, after their points ran again."""
        return self.path / "replaced"

    @property
    def checkpoints(self) -> Path:
        """The folder of all launches' checkpoints."""
        return self.path / "harness-checkpoints"

    def launch(self, launch: str) -> LaunchFolder:
        """Return the files of a launch."""
        return LaunchFolder(below(self.path, launch))

    def log(self, name: str) -> Path:
        """Return what a launch, or the referee of a block, prints."""
        return below(self.logs, f"{name}.log")

    def failure(self, launch: str) -> Path:
        """Return why a launch failed."""
        return below(self.failures, f"{launch}.json")

    def block_turns(self, block: str) -> Path:
        """Return the turns of a block."""
        return below(self.rounds, f"{block}.parquet")

    def script(self, name: str) -> Path:
        """Return the script of a job."""
        return below(self.jobs, f"{name}.sh")

    def point(self, launch: str) -> Path:
        """Return the point that the ranks of a launch read."""
        return below(self.jobs, f"{launch}.json")

    def exit_code(self, launch: str) -> Path:
        """Return the exit code that the job of a launch writes down."""
        return below(self.jobs, f"{launch}.exit")

    def words(self, launch: str) -> Path:
        """Return the words that start the ranks of a launch, which its job writes down when it knows its nodes."""
        return below(self.jobs, f"{launch}.words")

    def lost_nodes(self, launch: str) -> Path:
        """Return why the job of a launch has too few nodes for it, where that is so."""
        return below(self.jobs, f"{launch}.lost")

    def blocks_made(self, job: str) -> Path:
        """Return how far the blocks of a job are, by its name in the queue."""
        return below(self.jobs, f"{job}.blocks")

    def all_blocks_made(self) -> Iterator[Path]:
        """Yield the same of every job."""
        return self.jobs.glob("*.blocks")

    def records(self) -> Iterator[Path]:
        """Yield the launches' folders that have a record, whole or not, in no order."""
        return (file.parent for file in self.path.glob(f"*/{RUN_FILE}"))

    @property
    def has_records(self) -> bool:
        """Whether any launch has left a record."""
        return next(self.records(), None) is not None

    @property
    def has_launches(self) -> bool:
        """Whether any launch has left a record or a failure."""
        return self.has_records or any(self.failures.glob("*.json"))


def checkpoint_files(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, whole or not, the newest first."""
    return sorted(folder.glob(f"[0-9]*{CHECKPOINT_SUFFIX}"), reverse=True)


def holds_results(folder: Path) -> bool:
    """Return whether `folder` has sweeps, records or probes in it: it is a folder of results."""
    studies = (
        f"*/{STUDY_FILE}",
        f"checks/*/*/{STUDY_FILE}",
        f"reproductions/*/*/{STUDY_FILE}",
        f"together/*/{STUDY_FILE}",
    )
    patterns = (*studies, f"*/{RUN_FILE}", f"*/*/{RUN_FILE}", "probes/*/probe.json")
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def holds_reports(folder: Path) -> bool:
    """Return whether `folder` has an index of the harness's pages: it is a folder of reports."""
    try:
        return MADE_HERE in (folder / "index.html").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def make_results(folder: Path) -> None:
    """Make the folder of results, which must be new, empty or ours, with its mark.

    Raises:
        UserError: it has something else in it.
        OSError: the file system refuses.
    """
    make_place(folder, "results", is_ours=holds_results(folder))


def sweep_folders(results: Path) -> tuple[Path, ...]:
    """Return the sweeps' folders in `results`, the one that was written to last first.

    Written to: the study was asked for, or its folder gained or lost a launch.
    """
    folders = [file.parent for file in results.glob(f"*/{STUDY_FILE}")]
    return tuple(sorted(folders, key=lambda folder: (last_written(folder), folder.name), reverse=True))


def last_written(folder: Path) -> float:
    """Return when the sweep in `folder` was written to last, in seconds since 1970 by the file system's clock."""
    study = SweepFolder(folder).study
    return max(folder.stat().st_mtime, study.stat().st_mtime)
