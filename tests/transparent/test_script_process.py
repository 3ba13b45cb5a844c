"""A process that runs a script: its arguments, its exit code and what ends all ranks."""

import sys
from types import SimpleNamespace

import pytest

from harness.base.errors import RunError, SharedError, UserError
from harness.comm.world import World
from harness.transparent import script_process
from harness.transparent.script_process import _all_fail, _outcome, _prepare, end_together
from tests.labs.alike_ranks import AlikeComm


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
    assert _prepare(point) == tmp_path / "train.py"
    assert sys.argv == [str(tmp_path / "train.py"), "--epochs", "3"]
    assert sys.path[0] == str(tmp_path)


def test_a_package_of_this_tools_name_beside_the_script_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["start"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").touch()
    program = SimpleNamespace(path=tmp_path / "train.py", arguments=())
    with pytest.raises(UserError):
        _prepare(SimpleNamespace(workload=SimpleNamespace(script=program)))


@pytest.mark.parametrize(("error", "code"), [(UserError("a"), 2), (RunError("a"), 1), (ValueError("a"), 1)])
def test_the_exit_code_tells_whose_mistake_it_was(world, error, code, capsys):
    assert end_together(world, error) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_all_ranks_fail_alike_where_they_all_come(world, monkeypatch):
    assert _all_fail(world)
    monkeypatch.setattr(script_process, "_ALIKE_S", 0.1)
    world.comm.Ibarrier = lambda: SimpleNamespace(Test=lambda: False)
    assert not _all_fail(world)

    def gone():
        raise RuntimeError("a rank is gone")

    world.comm.Ibarrier = gone
    assert not _all_fail(world)


def session(world, error):
    def run():
        raise error

    return SimpleNamespace(world=world, run=run, explain=lambda failure: failure)


@pytest.mark.parametrize(
    ("error", "code"), [(SharedError(UserError("a")), 2), (SharedError(RunError("a")), 1), (UserError("a"), 2)]
)
def test_what_all_ranks_know_ends_them_together(world, error, code):
    failing = session(world, error)
    assert _outcome(failing, failing.run) == code


def test_what_one_rank_meets_ends_all_with_its_own_traceback(world, monkeypatch):
    ended = []
    monkeypatch.setattr(script_process, "abort", lambda world, error: ended.append(error))
    failure = ValueError("on this rank only")
    failing = session(world, failure)
    _outcome(failing, failing.run)
    assert ended == [failure]
