"""Layout: how many nodes, ranks, threads and GPUs a launch has."""

from dataclasses import dataclass

from harness.base.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Nodes, ranks per node, threads (= cores) per rank and GPUs per rank of one launch.

    `last_node` is the number of ranks on the last node where they do not fill it (10 ranks at 4 per node: 2), None
    where they do.

    Raises:
        UserError: a count is out of range.
    """

    nodes: int
    ranks_per_node: int = 1
    threads: int = 1
    gpus_per_rank: int = 0
    last_node: int | None = None

    def __post_init__(self) -> None:
        for field in ("nodes", "ranks_per_node", "threads"):
            if getattr(self, field) < 1:
                raise UserError(f"{field.replace('_', ' ')} {getattr(self, field)} is too small: use at least 1")
        if self.gpus_per_rank not in (0, 1):
            raise UserError(f"gpus per rank {self.gpus_per_rank} is out of range: a rank trains on 1 GPU or on none")
        if self.last_node is not None and (self.nodes == 1 or not 1 <= self.last_node < self.ranks_per_node):
            raise UserError(f"last node {self.last_node} must hold fewer than {self.ranks_per_node} ranks, at least 1")

    @property
    def ranks(self) -> int:
        """Number of MPI ranks."""
        return (self.nodes - 1) * self.ranks_per_node + (self.last_node or self.ranks_per_node)

    @property
    def cores(self) -> int:
        """Number of cores over all nodes."""
        return self.ranks * self.threads

    def __str__(self) -> str:
        """Return it in words, no two layouts in the same: ``2 ranks``, ``8 ranks on 2 nodes x 4 threads``."""
        text = f"{self.ranks} rank{'' if self.ranks == 1 else 's'}"
        if self.ranks_per_node > 1:
            text += f" on {self.nodes} node{'' if self.nodes == 1 else 's'}"
            text += f" ({self.last_node} on the last)" if self.last_node else ""
        text += f" x {self.threads} threads" if self.threads > 1 else ""
        return text + (" x 1 GPU" if self.gpus_per_rank else "")


def layout_order(layout: Layout) -> tuple[int, int, int, str]:
    """Return what layouts are sorted by; the first, of the fewest ranks, nodes and threads, is the base of others."""
    return layout.ranks, layout.nodes, layout.threads, str(layout)
