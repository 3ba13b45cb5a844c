"""The network that predictions use: the one on the command line, else this machine's newest probe."""

from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.provenance import describe_machine

if TYPE_CHECKING:
    from harness.prediction.network_cost import Uncertain


def find_network(
    network: str | None, results: Path, node: str | None = None, ranks_per_node: int = 1
) -> "tuple[Uncertain, str] | None":
    """Return the links that predictions use, and a sentence: those given, else this machine's newest probe, or None.

    Raises:
        UserError: what was given is not a network.
    """
    from harness.prediction.network_cost import probe_links, read_links
    from harness.probe.probe_store import newest_probe

    if network is not None:
        return read_links(network, node, ranks_per_node)
    probe = newest_probe(results, describe_machine(gpus=()).fingerprint)
    return probe_links(probe, ranks_per_node) if probe else None
