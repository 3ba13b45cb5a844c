"""`harness status` of jobs in turns, by what a real Slurm's squeue says of them, and by the blocks that they made."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from click.testing import CliRunner

from harness.base.files import write_atomic
from harness.cli import main
from harness.schema.record import encode
from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep.status import JobStatus, read_status
from harness.sweep.sweep_files import read_running
from harness.sweep.turn_block import BlockMade, SeriesProgress
from tests.labs.queues import Queue, sweep
from tests.labs.sentences import says
from tests.labs.sweep_lab import Lab


@pytest.fixture
def files(lab: Lab, queue: Queue, until: Callable[[int], None]) -> SweepFolder:
    """Return the sweep of two layouts whose only job, of four blocks, is in the queue; its command was ended."""
    until(2)
    with pytest.raises(KeyboardInterrupt):
        sweep(lab, "slurm", "turns")
    (folder,) = sweep_folders(lab.results)
    return SweepFolder(folder)


def note_blocks(files: SweepFolder, made: int) -> None:
    """Write down that the job has made so many of its two blocks."""
    (name,) = {running.name for running in read_running(files)}
    block = BlockMade(launches=("one", "two"), seconds=20.0)
    progress = SeriesProgress(blocks=(block,) * made, least=2, most=2, nodes=2, partition="", seconds=20.0 * made)
    write_atomic(files.blocks_made(name), encode(progress))


def only_job(files: SweepFolder) -> JobStatus:
    (job,) = read_status(files.path).jobs
    return job


def test_a_job_that_waits_has_the_schedulers_reason_and_its_estimate_of_the_start(
    files: SweepFolder, queue: Queue
) -> None:
    queue.answer("PENDING|Priority||0|2026-11-29T10:12:00")
    job = only_job(files)
    assert (job.state, job.blocks, job.most) == ("queued", 0, 0)
    says(job.detail, "Priority", "2026-11-29T10:12:00")
    queue.answer("PENDING|Resources||0|N/A")
    job = only_job(files)
    assert job.detail.endswith("Resources")
    queue.answer("PENDING|ReqNodeNotAvail, UnavailableNodes:n4||0|N/A")
    assert "UnavailableNodes:n4" in only_job(files).detail


def test_a_job_that_runs_has_its_blocks(files: SweepFolder, queue: Queue) -> None:
    queue.answer("RUNNING|None|n[1-2]|0|2026-11-29T10:12:00")
    note_blocks(files, 0)
    status = read_status(files.path)
    assert [entry.state for entry in status.entries] == ["running", "running", "queued", "queued"]
    note_blocks(files, 1)
    job = only_job(files)
    assert (job.state, job.blocks, job.least, job.most) == ("running", 1, 2, 2)
    assert "n[1-2]" in job.detail
    told = CliRunner().invoke(main, ["status", "--results", str(files.path.parent)])
    says(told.output, "n[1-2]; 1 blocks made of 2 to 2")


def test_a_sweep_whose_job_goes_on_with_extra_blocks_is_at_work(files: SweepFolder, queue: Queue) -> None:
    running = [replace(launch, extra=True) for launch in read_running(files)]
    write_atomic(files.running, encode(tuple(running)))
    queue.answer("RUNNING|None|n[1-2]|0|2026-11-29T10:12:00")
    assert read_status(files.path).at_work
