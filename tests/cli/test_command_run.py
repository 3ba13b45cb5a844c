"""What `harness run` gives to its ranks, and what it passes on of theirs."""

import os
import queue
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harness.__main__ import run_command_line
from harness.base.errors import UserError
from harness.cli import command_run
from harness.cli.command_run import RunOptions, local_transports, rank_start, rank_words
from harness.comm.mpi_library import Family, MpiInstallation
from harness.schema.layout import Layout
from harness.sweep import launch_command
from harness.sweep.scheduler_answers import variables_of_a_job
from harness.transparent.run_settings import RunSettings
from tests.labs.sentences import says


def make_options(folder: Path) -> RunOptions:
    """Return what asks for two ranks of a script in `folder`."""
    script = folder / "train.py"
    script.touch()
    return RunOptions(
        script=script,
        arguments=("--epochs", "3"),
        allow_argument=("KEY", "TOKEN"),
        ranks=2,
        threads=1,
        gpus_per_rank=1,
        here=False,
        settings=RunSettings(hang_timeout=0.0, keep_rank_files=True),
    )


def test_every_setting_reaches_the_ranks(tmp_path: Path) -> None:
    options = make_options(tmp_path)
    words = rank_words(options)
    switches = words[2 : words.index(str(options.script))]
    assert sorted(switches) == [
        "--allow-argument=KEY",
        "--allow-argument=TOKEN",
        "--batch=per-rank",
        "--fuse=auto",
        "--gpus-per-rank=1",
        "--hang-timeout=0.0",
        "--keep-rank-files",
        "--logs=harness-logs",
        "--sync=gradients",
        "--threads=1",
        "--verify=0",
        "--witness=first",
    ]
    assert words[-2:] == ["--epochs", "3"]
    assert "--keep-rank-files" not in rank_words(replace(options, settings=RunSettings()))


@pytest.fixture
def of_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be in no job, with the Open MPI wheel, and no site be this host's."""
    for name in variables_of_a_job():
        monkeypatch.delenv(name)
    mpi = MpiInstallation(family=Family.OPEN_MPI, launcher=Path("/opt/venv/bin/mpirun"), version="openmpi 5.0")
    monkeypatch.setattr(launch_command, "find_mpi", lambda: mpi)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")


@pytest.mark.usefixtures("of_no_job")
def test_in_a_pbs_job_of_several_nodes_ranks_start_on_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment of a job of OpenPBS 23.06 with select=3:ncpus=2:mpiprocs=2."""
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\nn3\nn3\n")
    for name, text in {
        "PBS_JOBID": "7.head",
        "PBS_ENVIRONMENT": "PBS_INTERACTIVE",
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "NCPUS": "2",
        "OMP_NUM_THREADS": "2",
    }.items():
        monkeypatch.setenv(name, text)
    options = replace(make_options(tmp_path), gpus_per_rank=0)
    start = rank_start(replace(options, ranks=5))
    assert (start.here, start.layout) == (False, Layout(nodes=3, ranks_per_node=2, last_node=1))
    words = " ".join(start.words)
    assert words.startswith("/opt/venv/bin/mpirun -n 5 ") and words.endswith("--host n1:2,n2:2,n3:2")
    agent = start.words[start.words.index("plm_ssh_agent") + 1].split()
    assert agent[0] == "sh" and Path(agent[1]).is_file()
    assert rank_start(replace(options, ranks=None)).layout == Layout(nodes=3, ranks_per_node=2)
    assert rank_start(replace(options, ranks=1)).layout == Layout(nodes=1)
    with pytest.raises(UserError) as refused:
        rank_start(replace(options, ranks=7))
    says(str(refused.value), "--ranks 7", 3, "at most 6")
    assert rank_start(replace(options, here=True)).here


@pytest.mark.usefixtures("of_no_job")
def test_in_salloc_srun_starts_ranks_on_the_nodes_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\necho pmi2 pmix\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, text in {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "nid[0001-0002]",
        "SLURM_JOB_CPUS_PER_NODE": "8,4",
    }.items():
        monkeypatch.setenv(name, text)
    options = replace(make_options(tmp_path), gpus_per_rank=0)
    start = rank_start(replace(options, ranks=4, threads=2))
    assert start.layout == Layout(nodes=2, ranks_per_node=2, threads=2)
    assert start.words[:4] == ("srun", "--mpi=pmix", "--nodes=2", "--ntasks=4")
    assert start.words[-2:] == ("--nodelist", "nid0001,nid0002")
    assert rank_start(replace(options, ranks=None, threads=2)).layout == start.layout  # of the smallest node
    monkeypatch.setenv("PMIX_RANK", "0")  # a rank of that job starts others where it is
    assert rank_start(options).here


def test_where_ranks_have_no_trees_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("import keras\n")
    started: list[object] = []
    monkeypatch.setattr(command_run, "namespace_refusal", lambda: "unshare: Operation not permitted")
    monkeypatch.setattr(command_run, "run_ranks", lambda *words, **settings: started.append(words) or 0)

    def code(*words: str) -> int:
        return run_command_line(["run", *words, str(script)])

    assert (code("-n", "2"), started) == (2, [])
    assert code("-n", "2", "--shared-files") == 0
    assert code("-n", "1") == 0
    script.write_text("import horovod.keras\n")
    assert code("-n", "2") == 0
    assert len(started) == 3


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, {"OMPI_MCA_btl": "^ofi"}),
        ({"OMPI_MCA_btl": "self,sm"}, {}),  # the user's own choice
        ({"HARNESS_MPI": "system"}, {}),  # a site may have its choice in a file
    ],
)
def test_ranks_on_one_host_are_kept_from_libfabric_where_nobody_has_chosen_transports(
    variables: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMPI_MCA_btl", "HARNESS_MPI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert local_transports() == expected


def test_a_script_on_ranks_starts_no_others_on_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setenv(command_run.MARK, "-")
    monkeypatch.setattr(command_run, "run_ranks", lambda *words, **settings: 0)
    assert run_command_line(["run", "-n", "2", str(script)]) == 2


RULE = b"-" * 74 + b"\n"
ABORT = RULE + b"MPI_ABORT was invoked on rank 0\n\nYou may or may not see output.\n" + RULE
ENDED = RULE + b'prterun has exited due to process rank 0 calling\n"abort".\n' + RULE
KILLED = RULE + b"prterun noticed that process rank 1 exited on signal 9\n" + RULE


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ABORT + b"harness: rank 0: no\n" + ENDED, b"harness: rank 0: no\n"),
        (b"harness: no\n" + ABORT + ENDED + b"more", b"harness: no\nmore"),
        (KILLED, KILLED),
        (
            RULE + b"epoch 1\n" + RULE + b"epoch 2\n--- half a rule",
            RULE + b"epoch 1\n" + RULE + b"epoch 2\n--- half a rule",
        ),
        (b"10 %\r20 %\r\n- a list\n", b"10 %\r20 %\r\n- a list\n"),
    ],
)
def test_what_ranks_write_is_passed_on_without_the_launchers_words_on_an_abort(
    text: bytes, expected: bytes, step: int
) -> None:
    written: list[bytes] = []
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream:
        reader = threading.Thread(target=command_run.RanksErrors(written.append).read, args=[stream])
        reader.start()
        for begin in range(0, len(text), step):
            os.write(write, text[begin : begin + step])
        os.close(write)
        reader.join()
    assert b"".join(written) == expected


def test_an_unfinished_line_is_passed_on_at_once() -> None:
    """As a progress bar is."""
    written: queue.Queue[bytes] = queue.Queue()
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream:
        reader = threading.Thread(target=command_run.RanksErrors(written.put).read, args=[stream])
        reader.start()
        os.write(write, b"10 %")
        parts = [written.get(timeout=60), written.get(timeout=60)]
        os.close(write)
        reader.join()
    assert b"".join(parts) == b"10 %"
