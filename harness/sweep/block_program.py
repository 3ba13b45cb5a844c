"""The program of a job in turns: on one machine ``python -m harness.sweep.block_program SERIES``."""

import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.base.errors import UserError
from harness.base.exit_codes import BAD_INPUT, SIGNALLED
from harness.base.files import write_atomic
from harness.schema.record import decode, encode
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.finished_launches import set_aside
from harness.sweep.referee import run_block
from harness.sweep.turn_block import (
    RANK_PYTHON,
    BlockEnd,
    BlockMade,
    BlockSeries,
    LaunchSpec,
    SeriesProgress,
    TurnBlock,
    WhyEnded,
)

# Times the last block: what another one is given, so that it is whole when the job is ended.
_LONGER = 1.2
_NOT_BEGUN = 1  # exit code of a launch for which there are too few nodes, and of a job with too little time

Enough = Callable[[Path], bool]


def main(path: Path, node: str = "localhost", enough: Enough | None = None, spent_s: float = 0.0) -> int:
    """Run the blocks in the file at `path`, write their turns and exit codes, and return the first code that is not 0.

    `node` is one of its nodes, not this one where there are several. `enough` says of a sweep's folder whether its
    speedups are known well enough. Its job has run for `spent_s` seconds already.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(SIGNALLED + number))  # so that what was started is ended
    try:
        series = decode(path.read_bytes(), BlockSeries, path)
        return run_series(series, reachable_address(node), enough, spent_s)
    except UserError as error:
        print(f"harness: {error}", file=sys.stderr)
        return BAD_INPUT


def run_series(series: BlockSeries, host: str, enough: Enough | None, spent_s: float = 0.0) -> int:
    """Run the blocks of `series` while they are wanted; return the first exit code of a launch that is not 0.

    It is 1 where the time limit, of which `spent_s` seconds have passed, leaves no time for a block that is asked for.
    """
    begun = time.monotonic() - spent_s
    finished: list[BlockMade] = []
    failed = 0
    why = WhyEnded.ALL
    for block in series.blocks:
        _note_progress(series, finished, begun)
        block_begun = time.monotonic()
        if series.limit_s and finished and block_begun - begun + _LONGER * finished[-1].seconds > series.limit_s:
            why = WhyEnded.LIMIT
            break
        if len(finished) >= series.least and (len(finished) - series.least) % series.of_repeat == 0:
            if failed:
                why = WhyEnded.FAILED
                break
            if enough is None or enough(Path(series.folder)):
                why = WhyEnded.ENOUGH
                break
        _set_aside_records(series, block)
        remaining = _without_lost(block)
        code = 0
        if remaining.launches:
            started = replace(remaining, launches=tuple(map(_as_started, remaining.launches)))
            end = run_block(started, host=host)
            code = next((code for code in end.codes.values() if code), 0)
            if code and series.enforced and series.limit_s and time.monotonic() - begun > series.limit_s:
                why = WhyEnded.LIMIT  # the job is being ended: its ranks were, or could not start any more
                break
            _write_end(remaining, end)
        if remaining != block:
            failed = failed or _NOT_BEGUN
        failed = code or failed
        names = tuple(launch.name for launch in remaining.launches)
        finished.append(BlockMade(launches=names, seconds=time.monotonic() - block_begun, code=code))
    _note_progress(series, finished, begun, why)
    if len(finished) < series.least:
        failed = failed or _NOT_BEGUN
    return failed


def _note_progress(
    series: BlockSeries, finished: Sequence[BlockMade], begun: float, why: WhyEnded | None = None
) -> None:
    """Write down how far `series` is, which was begun at that moment of the monotonic clock."""
    if series.progress_file:
        progress = SeriesProgress(
            blocks=tuple(finished),
            least=series.least,
            most=len(series.blocks),
            nodes=series.nodes,
            partition=series.partition,
            seconds=time.monotonic() - begun,
            why=why,
        )
        write_atomic(Path(series.progress_file), encode(progress))


def _set_aside_records(series: BlockSeries, block: TurnBlock) -> None:
    """Make room for launches that another block has made too: what the others of both are compared with."""
    if series.folder:
        for launch in block.launches:
            set_aside(SweepFolder(Path(series.folder)), launch.name)


def _without_lost(block: TurnBlock) -> TurnBlock:
    """Return `block` with the launches for which the job has nodes; of the others it is written down why not."""
    remaining: list[LaunchSpec] = []
    for launch in block.launches:
        reason = Path(launch.words_file).with_suffix(".lost") if launch.words_file else None
        if reason is None or not reason.exists():
            remaining.append(launch)
            continue
        write_atomic(Path(launch.log), reason.read_text())
        if launch.exit_file:
            write_atomic(Path(launch.exit_file), f"{_NOT_BEGUN}\n")
    return replace(block, launches=tuple(remaining))


def _write_end(block: TurnBlock, end: BlockEnd) -> None:
    """Write the turns and exit codes of a block that has come to its end."""
    write_atomic(Path(block.rounds), end.turns.to_parquet(index=False))
    for launch in block.launches:
        if launch.exit_file:
            write_atomic(Path(launch.exit_file), f"{end.codes[launch.name]}\n")


_LOOPBACK = "127.0.0.1"


def _with_words(launch: LaunchSpec) -> LaunchSpec:
    """Return `launch` with the words that its job has written down before its own."""
    if launch.words_file is None:
        return launch
    words = (*Path(launch.words_file).read_text().split("\0")[:-1], *launch.words)
    launcher = " ".join(words).partition(" -m harness ")[0]
    return replace(launch, words=words, changes={**launch.changes, "HARNESS_LAUNCHER": launcher})


def _as_started(launch: LaunchSpec) -> LaunchSpec:
    """Return `launch` with the words by which its ranks are started in this job."""
    return _by_rank_python(_with_words(launch))


def _by_rank_python(launch: LaunchSpec) -> LaunchSpec:
    """Return `launch` with ranks that start by the words of RANK_PYTHON, where the job has these."""
    rank_python = shlex.split(os.environ.get(RANK_PYTHON, ""))
    if not rank_python or sys.executable not in launch.words:
        return launch
    place = launch.words.index(sys.executable)
    words = (*launch.words[:place], *rank_python, *launch.words[place + 1 :])
    return replace(launch, words=words, changes={**launch.changes, RANK_PYTHON: None})


def _own_address(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise UserError(f"host {host} has no address ({error}): add it to /etc/hosts") from error


def reachable_address(node: str) -> str:
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
    sys.exit(main(Path(sys.argv[1])))
