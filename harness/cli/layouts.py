"""The options that say on how many nodes, cores, ranks and GPUs the points of a sweep run."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.base.errors import UserError

if TYPE_CHECKING:
    from harness.schema.layout import Layout
    from harness.sweep.submission import Submission


Command = TypeVar("Command", bound=Callable[..., Any])

_COUNTS = "1..8, 1..64*2 (doublings) or 1,2,4"
_OPTIONS = (
    click.option("--nodes", help=f"Node counts: {_COUNTS} [default: doublings up to the cores]."),
    click.option("--cores", help="Cores over all nodes, instead of nodes."),
    click.option("--gpus", help="GPUs over all nodes, one for each rank."),
    click.option("--ranks-per-node", help="MPI ranks on a node, one count or several [default: 1, or a full node]."),
    click.option("--threads", default="1", show_default=True, help="Cores, and TensorFlow threads, of a rank."),
    click.option("--zip", "zipped", is_flag=True, help="Take the lists one by one instead of every combination."),
    click.option("--shares", help="Unequal parts of the rows, one per rank: 2:1:1."),
)


def layout_options(command: Command) -> Command:
    """Add the options of layouts to a click command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def build_layouts(options: dict[str, Any], submission: "Submission") -> "tuple[tuple[Layout, ...], tuple[str, ...]]":
    """Return the layouts that the command line's `options` describe, and why other combinations cannot be.

    Raises:
        UserError: a count is wrong, or no combination can be.
    """
    from harness.schema.layout import MOST_COUNTS, parse_counts
    from harness.sweep.layouts import Axes, combine
    from harness.sweep.plan import parse_shares

    counts = {
        name: parse_counts(name.upper(), options[name]) if options[name] else ()
        for name in ("nodes", "cores", "gpus", "ranks_per_node", "threads")
    }
    combinations = 1 if options["zipped"] else math.prod(len(each) or 1 for each in counts.values())
    if combinations > MOST_COUNTS:
        raise UserError(
            f"these lists have {combinations:,} combinations: ask for at most {MOST_COUNTS:,}, or say ZIP=1"
        )
    limit = None
    if not counts["nodes"]:
        limit = submission.open(oversubscribe=options["oversubscribe"]).limit()
    if not (counts["nodes"] or counts["cores"] or counts["gpus"]):
        per_node = max(counts["ranks_per_node"] or (1,)) * max(counts["threads"])
        counts["nodes"] = parse_counts("NODES", _default_nodes(per_node, submission.scheduler, limit))
    shares = parse_shares(options["shares"]) if options["shares"] else None
    return combine(Axes(**counts, zipped=options["zipped"]), limit, shares)


def _default_nodes(cores_per_node: int, scheduler: str, limit: Any) -> str:
    """Return the doublings of nodes that there are; on one machine its cores stand for them."""
    if limit is None:
        raise UserError("NODES= is needed: how many nodes there are is not known here")
    nodes = limit.nodes or 1
    return f"1..{max(1, nodes // max(1, cores_per_node)) if scheduler == 'local' else nodes}*2"
