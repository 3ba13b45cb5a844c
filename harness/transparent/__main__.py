"""One rank: ``mpirun -n P python -m harness.transparent [switches] script.py [arguments]``."""

import os
import sys
from pathlib import Path
from typing import NoReturn


def start() -> None:
    """Be a rank, or the witness of some."""
    _restart_with_fixed_hashes()
    _leave_working_folder()
    from harness.transparent import private_files

    if private_files.WITNESS in os.environ:
        _testify()
    from harness.transparent.script_process import main

    main()


def _leave_working_folder() -> None:
    """Look for modules beside this package and not in the working folder, whose modules are the script's."""
    place = str(Path(__file__).resolve().parents[2])
    if sys.path[0] == place:
        return
    if sys.flags.safe_path:  # then Python has not put the working folder there
        sys.path.insert(0, place)
    sys.path[0] = place


def _restart_with_fixed_hashes() -> None:
    """Restart this process where Python's hashes, and so the order of sets, would differ from rank to rank."""
    if not os.environ.get("PYTHONHASHSEED"):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})


def _testify() -> NoReturn:
    """Be a witness with files of its own."""
    from harness.transparent import private_files

    script, logs = map(Path, os.environ.pop(private_files.WITNESS).splitlines())
    private_files.enter_as_witness(script, logs)
    from harness.transparent.script_process import testify

    testify()


if __name__ == "__main__":
    start()
