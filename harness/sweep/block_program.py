"""The program of a job whose launches train in turns: ``python -m harness.sweep.block_program BLOCK [NODE]``."""

import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

from harness.base.errors import UserError
from harness.base.exit_codes import BAD_INPUT, SIGNALLED
from harness.base.files import write_atomic
from harness.schema.record import decode
from harness.sweep.referee import run_block
from harness.sweep.turn_block import LaunchSpec, TurnBlock


def main(path: Path, node: str = "localhost") -> int:
    """Run the block in the file at `path`, write its turns and exit codes, and return the first code that is not 0.

    `node` is one of its nodes, not this one where there are several.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(SIGNALLED + number))  # so that what was started is ended
    try:
        block = decode(path.read_bytes(), TurnBlock, path)
        block = replace(block, launches=tuple(map(_with_words, block.launches)))
        end = run_block(block, host=_address(node))
        write_atomic(Path(block.rounds), end.turns.to_parquet(index=False))
        for launch in block.launches:
            if launch.exit_file:
                write_atomic(Path(launch.exit_file), f"{end.codes[launch.name]}\n")
    except UserError as error:
        print(f"harness: {error}", file=sys.stderr)
        return BAD_INPUT
    return next((code for code in end.codes.values() if code), 0)


_LOOPBACK = "127.0.0.1"


def _with_words(launch: LaunchSpec) -> LaunchSpec:
    """Return `launch` with the words that its job has written down."""
    if launch.words_file is None:
        return launch
    words = tuple(Path(launch.words_file).read_text().split("\0")[:-1])
    launcher = " ".join(words).partition(" -m harness ")[0]
    return replace(launch, words=words, changes={**launch.changes, "HARNESS_LAUNCHER": launcher})


def _own_address(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise UserError(f"host {host} has no address ({error}): add it to /etc/hosts") from error


def _address(node: str) -> str:
    """Return the address by which `node` reaches this host: that of the route to it.

    Where the node's name is the scheduler's alone, it is the address that this host's own name has. A host on which its
    own name or localhost has no address (a container without /etc/hosts) is reached from itself only.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:  # nothing is sent
        try:
            route.connect((node, 9))
        except (OSError, UnicodeError) as error:
            host = socket.gethostname()
            print(f"node {node} has no address ({error}): the turns are given by that of {host}", flush=True)
            return _LOOPBACK if node in ("localhost", host) else _own_address(host)
        return str(route.getsockname()[0])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:3]))
