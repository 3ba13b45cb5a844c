"""A file tree of its own for a rank of a sweep's script, before anything starts a thread: the kernel asks for that."""

from collections.abc import Sequence
from pathlib import Path

from harness.base.errors import UserError


def part_files(arguments: Sequence[str]) -> None:
    """Give this process its tree if the command line `arguments` are those of a rank above 0 that runs a script."""
    if arguments[:1] != ["train"] or "--point" not in arguments:
        return
    from harness.cli.launch_rank import rank_logs
    from harness.schema.record import read_point
    from harness.transparent.private_files import enter, rank_by_environment, sees_ranks

    point_file = _value(arguments, "--point")
    if point_file is None or not rank_by_environment():
        return
    try:
        workload = read_point(point_file).workload
    except UserError:  # all ranks say so when they are one world
        return
    script = workload.script
    if script is not None and not workload.shared_files and not sees_ranks(script.path, script.arguments):
        enter(script.path, rank_logs(_value(arguments, "--record")))


def _value(arguments: Sequence[str], name: str) -> Path | None:
    """Return the path after the option `name`, as job scripts write it."""
    following = arguments[arguments.index(name) + 1 :] if name in arguments else ()
    return Path(following[0]) if following else None
