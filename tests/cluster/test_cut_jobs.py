"""A real job in turns that its time limit ends in the middle of a block: whole blocks stand, the rest is made later."""

import contextlib
import signal
import sys
from pathlib import Path

import psutil
import pytest

from harness.schema.record import decode_file
from harness.schema.sweep_folder import SweepFolder, sweep_folders
from harness.sweep.status import read_status
from harness.sweep.turn_block import SeriesProgress
from tests.cluster.conftest import Terminal
from tests.cluster.slurm import Cluster, wait_for
from tests.labs.slurm_sweeps import TINY

# Ranks: what is left of a block that was ended is seen with those only. A campaign: it makes six blocks.
pytestmark = [pytest.mark.cluster, pytest.mark.mpi, pytest.mark.alone, pytest.mark.campaign, pytest.mark.timeout(900)]


def blocks_made(results: Path) -> int:
    """Return how many blocks the only job of the only sweep has made."""
    for folder in sweep_folders(results):
        for path in SweepFolder(folder).all_blocks_made():
            progress = decode_file(path, SeriesProgress)
            return len(progress.blocks) if progress else 0
    return 0


def stop_turns(results: Path) -> None:
    """Stop the process that gives the launches of the only job their turns, so that its block does not end."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if "harness.cli.job_blocks" in words and any(word.startswith(str(results)) for word in words):
                process.send_signal(signal.SIGSTOP)


def test_the_whole_blocks_of_a_job_that_its_limit_ends_count_and_the_next_command_makes_the_rest(
    terminal: Terminal, cluster: Cluster
) -> None:
    terminal.python = sys.executable  # a process that is stopped
    command = (*TINY, "--epochs", "40", "--nodes", "1,2", "--repeats", "4", "--walltime", "0:10:00")
    before = len(cluster.jobs())
    sweep = terminal.begin(*command)
    wait_for(lambda: blocks_made(terminal.results) >= 2, "two blocks", 300)
    stop_turns(terminal.results)
    made = blocks_made(terminal.results)
    assert 2 <= made < 4
    (job,) = cluster.jobs()[before:]
    (in_turns,) = read_status(terminal.sweep_folder).jobs
    assert (in_turns.job, in_turns.state, in_turns.blocks, in_turns.most) == (job, "running", made, 4)
    assert f"{made} blocks made of 4" in terminal.harness("status")
    cluster.ask("scontrol", "update", f"jobid={job}", "endtime=now+1")
    said, _ = sweep.communicate(timeout=200)
    assert sweep.returncode == 1, said
    assert f"{made} of 4 blocks" in said and "time limit" in said
    status = read_status(terminal.sweep_folder)
    counts = (status.count("done", "invalid"), status.count("missing"), status.count("failed"))
    assert counts == (2 * made, 8 - 2 * made, 0)
    assert status.command
    (page,) = (terminal.folder / "reports").glob("*/index.html")
    assert page.is_file()

    said = terminal.harness(*command)
    assert len(cluster.jobs()) - before == 2
    assert read_status(terminal.sweep_folder).count("done", "invalid") == 8, said
