"""A process that runs a script: its arguments, its exit code and what ends all ranks."""

import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from harness.base.errors import RunError, SharedError, UserError
from harness.comm.world import World
from harness.transparent import private_files, script_process
from harness.transparent.patch import Refusals
from harness.transparent.run_settings import INPUT, RunSettings
from harness.transparent.script_process import all_fail, end_together, prepare_script, refuse_unjudged, run_to_exit_code
from tests.labs.alike_ranks import AlikeComm
from tests.labs.sentences import refuses, says


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr("harness.comm.world.exit_code_file", lambda: None)
    comm = AlikeComm()
    comm.Ibarrier = lambda: SimpleNamespace(Test=lambda: True)
    return World(comm=comm, rank=0, size=2)


def test_a_script_has_its_arguments_and_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["start"])
    monkeypatch.setattr(sys, "path", ["elsewhere", *sys.path[1:]])
    program = SimpleNamespace(path=tmp_path / "train.py", arguments=("--epochs", "3"))
    point = SimpleNamespace(workload=SimpleNamespace(script=program))
    assert prepare_script(point) == tmp_path / "train.py"
    assert sys.argv == [str(tmp_path / "train.py"), "--epochs", "3"]
    assert sys.path[0] == str(tmp_path)


def test_a_run_that_no_witness_could_judge_is_refused_unless_that_is_asked_for():
    with refuses("--shared-files", "--unjudged"):
        refuse_unjudged(RunSettings(shared_files=True), 0)
    refuse_unjudged(RunSettings(shared_files=True, unjudged=True), 0)
    refuse_unjudged(RunSettings(), 0)


@pytest.mark.parametrize(("error", "code"), [(UserError("a"), 2), (RunError("a"), 1)])
def test_the_exit_code_tells_whose_mistake_it_was(world, error, code, capsys):
    assert end_together(world, error) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_failure_of_the_script_is_shown_once_with_its_traceback(world, capsys):
    failing = session(world, ValueError("a"))
    assert run_to_exit_code(failing, failing.run) == 1
    says(capsys.readouterr().err, "Traceback", "ValueError: a", "harness: the script has failed")
    failing = session(World(comm=world.comm, rank=1, size=2), ValueError("a"))
    assert run_to_exit_code(failing, failing.run) == 1
    assert not capsys.readouterr().err


def test_a_script_that_fails_after_a_refusal_ends_with_the_refusal(world, monkeypatch):
    """As where TensorFlow makes an error of its own of what a function of the script's data set was refused."""
    monkeypatch.setattr(Refusals, "first", UserError("refused"))
    failing = session(world, ValueError("UnknownError: refused"))
    assert run_to_exit_code(failing, failing.run) == 2


def test_all_ranks_fail_alike_where_they_all_come(world, monkeypatch):
    assert all_fail(world)
    monkeypatch.setattr(script_process, "ALIKE_S", 0.1)
    world.comm.Ibarrier = lambda: SimpleNamespace(Test=lambda: False)
    assert not all_fail(world)

    def gone():
        raise RuntimeError("a rank is gone")

    world.comm.Ibarrier = gone
    assert not all_fail(world)


def session(world, error):
    def run():
        raise error

    return SimpleNamespace(world=world, run=run, explain=lambda failure: failure)


@pytest.mark.parametrize(
    ("error", "code"), [(SharedError(UserError("a")), 2), (SharedError(RunError("a")), 1), (UserError("a"), 2)]
)
def test_what_all_ranks_know_ends_them_together(world, error, code):
    failing = session(world, error)
    assert run_to_exit_code(failing, failing.run) == code


def test_what_one_rank_meets_ends_all_with_its_own_traceback(world, monkeypatch):
    ended = []
    monkeypatch.setattr(script_process, "abort", lambda world, error: ended.append(error))
    monkeypatch.setattr(script_process, "all_fail", lambda world: False)
    failure = ValueError("on this rank only")
    failing = session(world, failure)
    run_to_exit_code(failing, failing.run)
    assert ended == [failure]


# The command of one rank: files of its own before MPI starts, standard input from a file.


@pytest.fixture
def entered(monkeypatch):
    calls = []
    monkeypatch.setattr(private_files, "enter", lambda script, logs, keep: calls.append(keep))
    return calls


@pytest.mark.parametrize(
    ("rank", "text", "keeps", "expected"),
    [
        (None, "", False, []),
        (0, "", False, []),
        (2, "", False, [""]),
        (2, "", True, ["rank-2"]),
        (2, "import horovod", True, []),
    ],
)
def test_a_rank_above_0_has_files_of_its_own(rank, text, keeps, expected, tmp_path, monkeypatch, entered):
    script = tmp_path / "train.py"
    script.write_text(text)
    monkeypatch.setattr(private_files, "rank_by_environment", lambda: rank)
    monkeypatch.delenv("TF_MPI_ENABLE", raising=False)
    script_process.part_files(script, [], tmp_path / "logs", keeps=keeps)
    assert entered == expected


def test_switches_come_before_the_script_and_its_arguments_after_it(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(script_process, "run_in_world", lambda *words: runs.append(words))
    monkeypatch.setattr(script_process, "part_files", lambda *words, keeps: None)
    monkeypatch.setattr(script_process, "settle_home", lambda: None)
    monkeypatch.delenv(INPUT, raising=False)
    script = tmp_path / "train.py"
    words = ["--threads", "3", "--batch", "global", str(script), "--threads", "9"]
    outcome = CliRunner().invoke(script_process.main, words)
    assert outcome.exit_code == 0, outcome.output
    ((path, arguments, threads, gpus, options),) = runs
    assert (path, arguments, threads, gpus) == (script, ("--threads", "9"), 3, 0)
    assert options["batch"] == "global"
