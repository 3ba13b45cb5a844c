"""Wheels of all that the harness needs, for a set-up without a network."""

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import resource
from harness.base.processes import run_program

LOCK = "requirements.lock"
CHECKOUT = Path(__file__).parent.parent.parent
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
_PIP_LIMIT_S = 3600.0


def add_wheels(folder: Path) -> None:
    """Write a wheel of the harness and of every distribution in the lock file into `folder`.

    Raises:
        UserError: one cannot be had.
    """
    folder.mkdir()
    if not (CHECKOUT / "pyproject.toml").exists():
        raise UserError("--offline needs a checkout, which the harness's own wheel is built from: run it there")
    pip = [sys.executable, *_PIP]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(CHECKOUT)]
    download = [*pip, "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", str(folder)]
    download += ["-r", str(resource(LOCK))]
    _ask_pip((build, download), "the wheels cannot be had", {"SOURCE_DATE_EPOCH": "315532800"})


def _ask_pip(commands: Sequence[Sequence[str]], failure: str, changes: Mapping[str, str | None]) -> None:
    for command in commands:
        reply = run_program(command, limit_s=_PIP_LIMIT_S, changes=changes)
        if reply.code != 0:
            raise UserError(f"--offline: {failure}: {reply.last_error}")


def try_wheels(folder: Path) -> float:
    """Return the seconds that the set-up from the wheels in `folder` alone takes; its environment is removed again.

    Raises:
        UserError: one is missing or does not install.
    """
    with tempfile.TemporaryDirectory(prefix="harness-bundle-") as name:
        install = [f"{name}/bin/python", *_PIP, "--isolated", "install", "--no-deps", "--no-index"]
        install += ["--find-links", str(folder)]
        began = time.monotonic()
        locked = [*install, "--require-hashes", "-r", str(resource(LOCK))]
        commands = ([sys.executable, "-m", "venv", name], locked, [*install, "mpi-tf-harness"])
        _ask_pip(commands, "the wheels do not install", {"PIP_CONFIG_FILE": os.devnull})
        return time.monotonic() - began
