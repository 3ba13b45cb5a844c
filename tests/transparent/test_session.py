"""One rank of a script: whether it has a witness, how many batches a step takes, what an error is told as."""

import errno
import socket
import sys
import time
from types import SimpleNamespace

import pytest

from harness.base.errors import SharedError, UserError
from harness.comm.world import World
from harness.schema.record_notes import NoteCode
from harness.transparent.patch import HorovodScript
from harness.transparent.private_files.file_mechanism import RankFiles
from harness.transparent.run_settings import RunSettings
from harness.transparent.session import OwnPorts, Session
from harness.transparent.witness import PeerRank
from tests.labs.alike_ranks import AlikeComm


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    (tmp_path / "train.py").write_text("import keras\n")
    return tmp_path / "train.py"


def session(script, size=2, **settings):
    world = World(comm=AlikeComm(0, size), rank=0, size=size)
    point = SimpleNamespace(workload=SimpleNamespace(own_rate=""))
    return Session(world=world, settings=RunSettings(**settings), script=script, point=point, began=time.monotonic())


@pytest.mark.parametrize(
    ("size", "settings", "watched"),
    [
        (2, {}, True),
        (2, {"unjudged": True}, False),
        (1, {}, False),
        (2, {"sync": "weights:2"}, False),
    ],
)
def test_several_ranks_that_share_gradients_have_a_witness(script, size, settings, watched):
    assert session(script, size, **settings).wants_witness() == watched


def test_a_recorded_run_and_a_script_of_horovods_words_have_none(script, tmp_path):
    assert not session(script, record=tmp_path / "record").wants_witness()
    script.write_text("import horovod\n")
    assert not session(script).wants_witness()


@pytest.mark.parametrize(
    ("size", "has_witness", "codes"),
    [(2, False, [NoteCode.NO_WITNESS]), (2, True, []), (1, False, [])],
)
def test_a_training_that_no_witness_could_judge_is_not_said_to_be_judged(script, size, has_witness, codes):
    running = session(script, size, unjudged=True)
    if has_witness:
        running.witness = PeerRank()
    notes = []
    running.note_missing_witness(SimpleNamespace(note=notes.append))
    assert [note.code for note in notes] == codes


def test_a_script_for_horovod_is_not_said_to_lack_a_witness(script, monkeypatch):
    monkeypatch.setattr(HorovodScript, "active", True)
    notes = []
    session(script).note_missing_witness(SimpleNamespace(note=notes.append))
    assert not notes


def test_a_step_takes_as_many_of_the_scripts_batches_as_the_batch_is_whose(script, monkeypatch):
    assert session(script, batch="per-rank").batches_of_a_step() == 2
    assert session(script, batch="global").batches_of_a_step() == 1
    monkeypatch.setattr(HorovodScript, "active", True)
    assert session(script, batch="global").batches_of_a_step() == 2


@pytest.mark.parametrize(("divided", "explained"), [(0, False), (1, True), (2, True), (3, False)])
def test_an_error_at_the_first_divided_batches_is_told_as_theirs(script, divided, explained):
    running = session(script)
    running.installed = (SimpleNamespace(divided=divided), None)
    failure = ValueError("shapes differ")
    assert isinstance(running.explain(failure), UserError) == explained
    assert running.explain(KeyboardInterrupt()) is not failure


def test_files_that_are_not_apart_are_noted_once(script, monkeypatch, capsys):
    running = session(script)
    files = RankFiles(unfrozen=["/data"], read_only=["/stick"])
    monkeypatch.setattr(running.world.comm, "allgather", lambda own_files: [own_files, files, files])
    running.part_files()
    assert [note.code for note in running.file_notes] == [NoteCode.FOLDER_SHOWS_CHANGES, NoteCode.FOLDER_READ_ONLY]
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_shared_files_are_noted_and_no_witness_writes_them(script):
    running = session(script, shared_files=True)
    running.part_files()
    assert [note.code for note in running.file_notes] == [NoteCode.FILES_SHARED]
    assert not running.wants_witness()


def test_all_ranks_end_where_one_has_no_tree(script, monkeypatch):
    running = session(script)
    refusal = RankFiles(refusal="no namespaces")
    monkeypatch.setattr(running.world.comm, "allgather", lambda files: [files, refusal])
    with pytest.raises(SharedError) as caught:
        running.part_files()
    assert isinstance(caught.value.error, UserError)


# A port that rank 0 listens at is another one on other ranks of its host; they reach their own there.


@pytest.fixture
def own_ports(monkeypatch):
    """Give what has sockets listen as those of a rank above 0 do, until the test ends."""
    for name in ("bind", "connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, getattr(socket.socket, name))
    return OwnPorts().install


def test_a_rank_listens_elsewhere_than_rank_0_and_reaches_itself(own_ports):
    with socket.create_server(("127.0.0.1", 0)) as first, socket.socket() as second, socket.socket() as client:
        address = first.getsockname()
        own_ports()
        second.bind(address)
        second.listen()
        assert second.getsockname() != address
        client.connect(address)
        assert client.getpeername() == second.getsockname()
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            assert other.getsockname()[1] not in (0, address[1])


def test_a_path_that_is_taken_stays_so(own_ports, tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.bind(path)
        own_ports()
        with pytest.raises(OSError, match="in use") as raised:
            second.bind(path)
        assert raised.value.errno == errno.EADDRINUSE
