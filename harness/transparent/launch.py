"""Start the ranks of a user's script and wait for them."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from harness.base.processes import interruptible

_GRACE_S = 10.0


def run_ranks(command: Sequence[str], environment: Mapping[str, str | None]) -> int:
    """Run `command` (mpirun and all) and return its exit code; a variable of None is unset.

    The ranks inherit standard output and error. Ctrl-C, SIGTERM and a closed terminal end all of them.
    """
    variables = {**os.environ, **{name: value for name, value in environment.items() if value is not None}}
    for name, value in environment.items():
        if value is None:
            variables.pop(name, None)
    with interruptible():
        child = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)
        try:
            code = child.wait()
        except KeyboardInterrupt:
            _end(child)
            raise
    return code if code >= 0 else 128 - code


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End mpirun, which ends its ranks; kill it when it does not."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
