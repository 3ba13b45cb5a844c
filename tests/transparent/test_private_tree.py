"""A process with a file tree of its own: nobody else sees what it writes, nor does it see what others write later."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.base import mounts
from harness.base.scratch import RANK_PREFIX
from harness.transparent.private_files import private_tree
from harness.transparent.private_files.file_mechanism import namespace_refusal
from harness.transparent.private_files.private_tree import KEPT_PREFIX, FrozenFolder, TooLargeError, overlaid_folders

_NOT_HERE = 77
PROCESS = """
import os, sys
from pathlib import Path
from harness.base import mounts
from harness.transparent.private_files.private_tree import PrivateTree, TreePlaces
top = Path(sys.argv[1])
exec(sys.argv[3])
os.chdir(top / "cwd")
places = TreePlaces(deep=[top / "cwd"], shallow=eval(sys.argv[4]), shared=[top / "cwd" / "logs"], top=top)
try:
    tree = PrivateTree()
    tree.show(places, keep=sys.argv[2])
except OSError as error:
    print(error)
    sys.exit(77)
print("shown", tree.scratch, flush=True)
"""


class Process:
    """A process that sees its own tree below `top`, and runs what is written to it line by line; `first` before all.

    `shallow` is an expression of `top`: the folders of which the names are copied.
    """

    def __init__(self, top, scratch, keep="", first="", shallow="[]"):
        loop = PROCESS + "for line in sys.stdin:\n    exec(line)\n    print('done', flush=True)\n"
        self._process = subprocess.Popen(
            [sys.executable, "-c", loop, str(top), keep, first, shallow],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
        first = self._process.stdout.readline()
        if self._process.poll() == _NOT_HERE or not first.startswith("shown"):
            self.end()
            refusal = namespace_refusal()
            assert refusal, f"a tree in a temporary folder can be shown here, this one cannot: {first.strip()}"
            pytest.skip(f"no file tree of its own here: {refusal}")
        self.scratch = Path(first.split()[1])

    def run(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def end(self, kill=False):
        if kill:
            self._process.send_signal(signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def top(tmp_path):
    (tmp_path / "scratch").mkdir()
    folder = tmp_path / "top"
    for name in ("cwd/data", "cwd/logs", "elsewhere"):
        (folder / name).mkdir(parents=True)
    (folder / "cwd" / "log.csv").write_text("old\n")
    (folder / "cwd" / "data" / "rows").write_text("1 2 3")
    (folder / "cwd" / "large").write_bytes(bytes(5 * 2**20))
    return folder


@pytest.fixture
def process(top, tmp_path):
    process = Process(top, tmp_path / "scratch")
    yield process
    process.end()


def gone(folder):
    """Tell whether `folder` is removed within some seconds: that is done from outside, when the process has ended."""
    deadline = time.monotonic() + 60
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not folder.exists()


def test_nobody_sees_what_it_writes_changes_and_removes(top, process):
    process.run("open('new', 'w').write('mine')")
    process.run("open('log.csv', 'a').write('mine'); assert open('log.csv').read() == 'old\\nmine'")
    process.run("open('large', 'ab').write(b'more'); assert os.path.getsize('large') == 5 * 2**20 + 4")
    process.run("os.remove('data/rows'); os.rmdir('data'); os.mkdir('data'); assert os.listdir('data') == []")
    process.run("open('../elsewhere/new', 'w').write('mine'); assert os.path.exists('../elsewhere/new')")
    process.run("assert os.system('cp new copy; test -e copy') == 0")
    assert sorted(path.name for path in (top / "cwd").iterdir()) == ["data", "large", "log.csv", "logs"]
    assert (top / "cwd" / "log.csv").read_text() == "old\n"
    assert (top / "cwd" / "large").stat().st_size == 5 * 2**20
    assert (top / "cwd" / "data" / "rows").read_text() == "1 2 3"
    assert list((top / "elsewhere").iterdir()) == []


def test_it_does_not_see_what_others_write_in_its_folder_meanwhile(top, process):
    """Else a rank would find rank 0's half-written file, folder or rows of a database in the place of none."""
    with sqlite3.connect(top / "cwd" / "study.db") as database:
        database.execute("CREATE TABLE trials (loss)")
    (top / "cwd" / "run").mkdir()
    (top / "cwd" / "log.csv").open("a").write("rank 0's\n")
    (top / "cwd" / "data" / "rows").unlink()
    process.run("os.mkdir('run'); assert not os.path.exists('study.db')")
    process.run("assert open('log.csv').read() == 'old\\n' and open('data/rows').read() == '1 2 3'")


@pytest.mark.parametrize("shallow", ["[top]", "[top, top / 'cwd' / 'scratch']", "[top / 'cwd' / 'scratch']"])
def test_its_own_files_may_be_below_a_folder_that_is_copied_and_lies_in_one_that_is(top, shallow):
    (top / "cwd" / "scratch").mkdir()
    process = Process(top, top / "cwd" / "scratch", shallow=shallow)
    process.run("assert Path('log.csv').read_text() == 'old\\n'; Path('log.csv').write_text('new')")
    process.run("assert Path('large').stat().st_size == 5 * 2**20")
    process.end()
    assert (top / "cwd" / "log.csv").read_text() == "old\n"
    assert gone(process.scratch)


@pytest.mark.parametrize("shallow", ["[top]", "[top, top / 'cwd' / 'data']"])
def test_a_folder_of_too_many_entries_to_be_copied_is_seen_within_one_that_is_copied(top, tmp_path, shallow):
    for number in range(20):
        (top / "cwd" / "data" / str(number)).touch()
    process = Process(
        top,
        tmp_path / "scratch",
        first="from harness.transparent.private_files import private_tree as t; t.ENTRIES = 9",
        shallow=shallow,
    )
    process.run("assert Path('log.csv').read_text() == 'old\\n'; Path('log.csv').write_text('new')")
    process.run("assert len(list(Path('data').iterdir())) == 21")
    process.end()
    assert (top / "cwd" / "log.csv").read_text() == "old\n"


def test_it_reaches_the_services_that_others_have_behind_sockets(top, tmp_path, monkeypatch):
    """Databases have theirs in /tmp; through an overlay nobody would answer."""
    monkeypatch.chdir(top)
    connect = "import socket; socket.socket(socket.AF_UNIX).connect(r'{}')"
    with socket.socket(socket.AF_UNIX) as below, socket.socket(socket.AF_UNIX) as frozen:
        below.bind(str(top / "elsewhere" / "s"))
        frozen.bind(str(top / "cwd" / "s"))
        for server in (below, frozen):
            server.listen()
        process = Process(top, tmp_path / "scratch")
        for place in ("elsewhere", "cwd"):
            process.run(connect.format(top / place / "s"))
        process.end()


def test_shared_folders_are_the_real_ones(top, process):
    process.run("open('logs/rank-1.log', 'w').write('mine')")
    assert (top / "cwd" / "logs" / "rank-1.log").read_text() == "mine"


@pytest.mark.parametrize("kill", [False, True])
def test_what_it_wrote_is_removed_when_it_has_ended_in_whatever_way(top, tmp_path, kill):
    process = Process(top, tmp_path / "scratch")
    process.run("open('new', 'w').write('mine')")
    process.end(kill=kill)
    assert gone(process.scratch)
    assert (top / "cwd" / "data" / "rows").read_text() == "1 2 3"
    assert not list((tmp_path / "scratch").glob(f"{RANK_PREFIX}*"))


def test_what_it_wrote_is_kept_where_that_is_asked_for(top, tmp_path):
    process = Process(top, tmp_path / "scratch", keep="rank-1")
    process.run("open('new', 'w').write('mine')")
    process.end()
    assert process.scratch.name.startswith(f"{KEPT_PREFIX}rank-1-")
    (new,) = process.scratch.rglob("new")
    assert new.read_text() == "mine"


def test_a_process_with_a_tree_of_its_own_starts_no_child_of_its_own(process):
    """A script may wait for all of its children."""
    process.run("import subprocess; subprocess.Popen('true').wait()")
    process.run("children = f'/proc/{os.getpid()}/task/{os.getpid()}/children'")
    process.run("assert not os.path.exists(children) or open(children).read() == ''")


def test_overlays_lie_on_the_largest_folders_with_nothing_mounted_below(tmp_path):
    for name in ("a/b", "a/c", "d"):
        (tmp_path / name).mkdir(parents=True)
    points = [
        mounts.MountPoint(path=Path("/"), kind="ext4", read_only=False),
        mounts.MountPoint(path=tmp_path / "a" / "b", kind="ext4", read_only=True),
    ]
    assert list(overlaid_folders(tmp_path, points)) == [tmp_path / "a" / "c", tmp_path / "d"]
    assert list(overlaid_folders(Path("/proc"), points)) == []


MOUNT = "mounts.enter_namespace(); mounts.bind(top / 'elsewhere', top / 'cwd' / 'data')"
"""Has something mounted below the working folder, as a container's volume is."""


def failing(line):
    """Return a line in which `line` is refused, as what would write the real files is."""
    return (
        "exec("
        + repr(f"try:\n    {line}\n    raise AssertionError\nexcept OSError as error:\n    refusal = error")
        + ")"
    )


@pytest.fixture
def mounted(top, tmp_path):
    process = Process(top, tmp_path / "scratch", first=MOUNT)
    yield process
    process.end()


def test_with_a_mount_below_its_folder_small_files_are_copies_and_large_ones_are_read_only(top, mounted):
    mounted.run("assert Path('large').is_symlink() and os.path.getsize('large') == 5 * 2**20")
    mounted.run(failing("open('large', 'r+b').write(b'mine')"))
    mounted.run(failing("os.truncate('large', 0)"))
    mounted.run(failing("os.chmod('large', 0)"))
    mounted.run("open('log.csv', 'a').write('mine'); open('data/new', 'w').write('mine'); open('new', 'w').write('m')")
    mounted.run("os.remove('large'); open('large', 'w').write('mine')")  # the link, and a file of its own
    assert (top / "cwd" / "large").read_bytes() == bytes(5 * 2**20)
    assert (top / "cwd" / "log.csv").read_text() == "old\n"
    assert not (top / "cwd" / "new").exists()
    assert list((top / "elsewhere").iterdir()) == []


def test_what_no_overlay_can_lie_on_is_read_only(top, tmp_path):
    (top / "half" / "disk").mkdir(parents=True)
    (top / "half" / "real").write_text("mine alone")
    (top / "half" / "beside").mkdir()
    process = Process(top, tmp_path / "scratch", first=MOUNT.replace("cwd' / 'data", "half' / 'disk"))
    for line in ("open('../half/real', 'a')", "os.remove('../half/real')", "open('../half/new', 'w')"):
        process.run(failing(line) + "; assert refusal.errno == 30")
    process.run("open('../half/beside/new', 'w').write('mine'); open('../half/disk/new', 'w').write('mine')")
    process.run("open('logs/rank-1.log', 'w').write('shared')")
    process.end()
    assert sorted(str(path.relative_to(top / "half")) for path in (top / "half").rglob("*")) == [
        "beside",
        "disk",
        "real",
    ]
    assert (top / "half" / "real").read_text() == "mine alone"
    assert list((top / "elsewhere").iterdir()) == []
    assert (top / "cwd" / "logs" / "rank-1.log").read_text() == "shared"


VANISHING = """
from harness.transparent.private_files import private_tree
shared = private_tree.PrivateTree._shared_folders
private_tree.PrivateTree._shared_folders = lambda tree: [*shared(tree), top / 'gone']
overlaid = private_tree.overlaid_folders
private_tree.overlaid_folders = lambda *words: [*overlaid(*words), top / 'gone']
opened = private_tree.PrivateTree._open_real_mounts
def taken_away(tree, stack):
    roots = opened(tree, stack)
    mounts.detach(top / 'cwd' / 'data')
    return roots
private_tree.PrivateTree._open_real_mounts = taken_away
"""
"""Folders and a mount that are gone when it is their turn: others use the machine while a tree is made."""


def test_what_vanishes_while_the_tree_is_made_is_no_reason_to_have_none(top, tmp_path):
    process = Process(top, tmp_path / "scratch", first=MOUNT + VANISHING)
    process.run("open('new', 'w').write('mine')")
    process.end()
    assert not (top / "cwd" / "new").exists()


def test_nothing_is_removed_in_a_tree_of_its_own(top):
    """A rank's own folder looks there like one that nobody holds, and what is mounted in it is real."""
    (top / "cwd" / ".git").mkdir()
    (top / "cwd" / ".git" / "HEAD").touch()
    (top / "temporary").mkdir()
    for first in ("", MOUNT):
        process = Process(top, top / "temporary", first=first)
        process.run("import tempfile; from harness.base.scratch import HeldFolder, remove_dead")
        process.run("before = sorted(map(str, Path().rglob('*')))")
        process.run("other = HeldFolder(Path(tempfile.gettempdir()), 'harness-rank-')")
        process.run("remove_dead(Path(tempfile.gettempdir()), 'harness-rank-')")
        process.run("other.close(); assert sorted(map(str, Path().rglob('*'))) == before")
        process.run("assert os.path.getsize('large') == 5 * 2**20 and os.path.exists('.git/HEAD')")
        process.end()
    assert (top / "cwd" / ".git" / "HEAD").exists()
    assert (top / "cwd" / "large").exists()


NESTED = """
from harness.base import mounts
child = os.fork()
if child == 0:
    status = 1
    try:
        inner = PrivateTree()
        inner.show(TreePlaces(deep=[top / "cwd"], top=top))
        os.chdir(top / "cwd")
        for path in ("log.csv", "../elsewhere/new", "data/rows"):
            try:
                open(path, "a").write("inner")
            except OSError as error:
                assert error.errno == 30, error
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(child, 0)[1] == 0
assert open("log.csv").read() == "old\\n" and not os.path.exists("../elsewhere/new")
"""


def test_a_tree_in_a_tree_damages_neither(top):
    """As where a script starts another by the harness."""
    (top / "temporary").mkdir()
    process = Process(top, top / "temporary")
    process.run("exec(" + repr(NESTED) + ")")
    time.sleep(0.5)  # for what would remove the inner tree's folder
    process.run("open('log.csv', 'a').write('mine'); assert open('log.csv').read() == 'old\\nmine'")
    process.end()
    assert (top / "cwd" / "log.csv").read_text() == "old\n"
    assert (top / "cwd" / "data" / "rows").read_text() == "1 2 3"


def test_a_process_that_leaves_its_tree_writes_the_real_files_again(top, process):
    process.run("open('log.csv', 'a').write('mine'); tree.leave(); open('log.csv', 'a').write('real')")
    assert (top / "cwd" / "log.csv").read_text() == "old\nreal"


RENAMES = (
    "from harness.transparent.private_files.crossing_renames import CrossingRenames; "
    "CrossingRenames(tree.is_one_place).install()"
)


def test_what_one_process_can_rename_it_can_rename_though_it_has_more_mounts(top, process):
    """From the temporary folder to the working one, say; and a folder below an overlay."""
    process.run(RENAMES)
    process.run("open('../elsewhere/new', 'w').write('mine'); os.replace('../elsewhere/new', 'log.csv')")
    process.run("assert open('log.csv').read() == 'mine' and not os.path.exists('../elsewhere/new')")
    process.run("os.makedirs('made/below'); Path('made').rename('../elsewhere/made')")
    process.run("assert os.listdir('../elsewhere') == ['made'] and os.listdir('../elsewhere/made') == ['below']")
    process.run("os.mkdir('empty'); os.rename('../elsewhere/made', 'empty'); assert os.listdir('empty') == ['below']")
    assert (top / "cwd" / "log.csv").read_text() == "old\n"


def test_what_one_process_cannot_rename_it_cannot_either(process):
    process.run(RENAMES)
    failing = "\ntry:\n    os.rename({!r}, {!r})\n    raise AssertionError\nexcept {}:\n    pass"
    for source, target, error in (
        ("../elsewhere/none", "new", "FileNotFoundError"),
        ("log.csv", "/dev/shm/log.csv", "OSError"),
    ):
        process.run("exec(" + repr(failing.format(source, target, error)) + ")")
    process.run("assert os.path.exists('log.csv') and not os.path.exists('/dev/shm/log.csv')")


# A copy of a folder as it is when a launch begins; what is too large stays a view of the live folder.


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "small.txt").write_text("small")
    (folder / "sub" / "rows.csv").write_text("1,2")
    (folder / "link").symlink_to("small.txt")
    return folder


def frozen(folder, tmp_path, **words):
    words = {"places": (), "levels": 3, **words}
    return FrozenFolder(folder, tmp_path / "copy", tmp_path / "live", **words)


def test_names_and_contents_are_copied_and_later_changes_are_not_seen(folder, tmp_path):
    copy = frozen(folder, tmp_path).copy
    (folder / "small.txt").write_text("changed")
    (folder / "new.txt").touch()
    assert (copy / "small.txt").read_text() == "small"
    assert (copy / "sub" / "rows.csv").read_text() == "1,2"
    assert (copy / "link").readlink() == Path("small.txt")
    assert not (copy / "new.txt").exists()


def test_a_large_file_is_a_link_to_the_live_one(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(private_tree, "FILE_BYTES", 3)
    copy = frozen(folder, tmp_path).copy
    assert (copy / "small.txt").readlink() == tmp_path / "live" / "small.txt"
    assert not (copy / "sub" / "rows.csv").is_symlink()


def test_folders_below_the_last_level_are_seen_live(folder, tmp_path):
    shallow = frozen(folder, tmp_path, levels=0)
    assert [str(path) for path in shallow.live_folders] == ["sub"]
    assert (shallow.copy / "sub").is_dir()


def test_of_a_place_only_the_name_is_copied(folder, tmp_path):
    copy = frozen(folder, tmp_path, places=(folder / "sub",))
    assert list((copy.copy / "sub").iterdir()) == []
    assert copy.live_folders == []


def test_a_folder_of_too_many_entries_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(private_tree, "ENTRIES", 2)
    with pytest.raises(TooLargeError):
        frozen(folder, tmp_path)
