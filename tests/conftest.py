"""Fixtures that every test file may use, and what holds for every test: marks that are true, skips that are told."""

import os
import signal
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from harness.base.files import cache_folder
from tests.labs.caches import own_cache

# A test of one room loads no library of another: what fixtures need is imported when a test asks for them.
pytest_plugins = ("tests.labs.common_fixtures",)

# The machine that runs the tests may be busy: a slow example is no failure.
settings.register_profile("harness", deadline=None)
settings.load_profile("harness")

# A shell starts background jobs deaf to Ctrl-C, and their children inherit it: tests that press it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("HARNESS_FETCH", "0")  # tests need no network, and are the same where there is one
os.environ.setdefault("HARNESS_QUIET_S", "0")  # other tests keep the machine busy: most launches time nothing


# Tests that take longer carry one of these marks, so that `make test` leaves them out.
_LONG_S = 10.0
_LONG_MARKS = {"mpi", "e2e", "cluster", "slow"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let mpirun start under tests marked `mpi` only: under others it ends at once and names a missing component."""
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("mpi") is None:
            patch.setenv("PRTE_MCA_ess", "a-test-that-starts-mpirun-carries-the-mark-mpi")
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests were skipped for what reason and how many, and which are long without a mark."""
    skipped = defaultdict(list)
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skipped[reason.removeprefix("Skipped: ")].append(report.nodeid.partition("[")[0])
    for reason, names in skipped.items():
        terminalreporter.write_line(f"skipped {len(names)}: {reason}: {', '.join(sorted(set(names)))}")
    for report in terminalreporter.stats.get("passed", ()):
        if report.duration > _LONG_S and not _LONG_MARKS & report.keywords.keys():
            terminalreporter.write_line(f"{report.duration:.0f} s without the mark slow: {report.nodeid}")


@pytest.fixture(autouse=True)
def own_turn(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test's launches wait for no other test's: most of them time nothing."""
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path_factory.mktemp("locks")))


_REAL_DATA = Path(os.environ.get("HARNESS_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session")
def real_data() -> Path | None:
    """Return the folder of the original data files, None where there is none: they do not travel with the project."""
    return _REAL_DATA if _REAL_DATA.is_dir() else None


@pytest.fixture(scope="session")
def shared_data(real_data: Path | None) -> Path:
    """Return the folder of the original data files, or skip."""
    if real_data is None:
        pytest.skip(f"no real data in {_REAL_DATA}: set HARNESS_TEST_DATA to a folder of the original files")
    return real_data


@pytest.fixture(scope="session")
def session_environment() -> Iterator[pytest.MonkeyPatch]:
    """Change the environment for the rest of the session's tests that ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


# Rooms whose tests draw no pages, and load no matplotlib.
_WITHOUT_PAGES = {
    "analysis",
    "base",
    "comm",
    "datasets",
    "models",
    "readers",
    "schema",
    "sweep",
    "train",
    "transparent",
}


@pytest.fixture(scope="session", autouse=True)
def no_pictures(request: pytest.FixtureRequest) -> Iterator[pytest.MonkeyPatch]:
    """Write figures' PDF and PNG files without a picture in them, which takes half of a page's time.

    Drawings inside of pages and SVG files are as users have them.
    """
    rooms = {item.path.relative_to(Path(__file__).parent).parts[0] for item in request.session.items}
    with pytest.MonkeyPatch.context() as patch:
        if rooms - _WITHOUT_PAGES:
            leave_out_pictures(patch)
        yield patch


def leave_out_pictures(patch: pytest.MonkeyPatch) -> None:
    """Let figures' PDF and PNG files have no picture until `patch` is undone."""
    from harness.report import svg

    render = svg.render
    patch.setattr(svg, "render", lambda figure, kind, *text: render(figure, kind, *text) if kind == "svg" else b"none")


@pytest.fixture(scope="module")
def coarse_pictures(no_pictures: pytest.MonkeyPatch) -> Iterator[None]:
    """Write figures' files whole, but coarsely and without fonts inside."""
    from harness.report import svg

    no_pictures.undo()
    no_pictures.setattr(svg, "DPI", 50)
    no_pictures.setitem(svg.STYLE, "pdf.fonttype", 3)
    yield
    no_pictures.undo()
    leave_out_pictures(no_pictures)


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what a test launches from this process start with TensorFlow imported (`harness.sweep.fork_server`)."""
    from tests.mpi.launch import warm_python

    monkeypatch.setattr(sys, "executable", warm_python())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder of the test's own, which the harness uses."""
    monkeypatch.delenv("HARNESS_DATA_DIR", raising=False)
    monkeypatch.setenv("HARNESS_CACHE_DIR", own_cache(tmp_path / "cache"))
    return cache_folder()
