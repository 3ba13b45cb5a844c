"""Fixtures that every test file may use."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The machine that runs the tests may be busy: a slow example is no failure.
settings.register_profile("harness", deadline=None)
settings.load_profile("harness")

# A shell starts background jobs deaf to Ctrl-C, and their children inherit it: tests that press it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of the original data files, or skip: they do not travel with the project."""
    default = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("HARNESS_TEST_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}: set HARNESS_TEST_DATA to a folder of the original files")
    return folder


@pytest.fixture(scope="session")
def session_environment() -> Iterator[pytest.MonkeyPatch]:
    """Change the environment for the rest of the session's tests that ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder of the test's own, which the harness uses."""
    monkeypatch.delenv("HARNESS_DATA_DIR", raising=False)
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
