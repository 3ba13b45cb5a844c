"""Other bases: the same launches relative to the base that a paper chose, beside the common one."""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from harness.analysis.scaling import Scaling, scale
from harness.spec.claim import Claim


@dataclass(frozen=True, kw_only=True, slots=True)
class OtherBase:
    """The points over another base. `name` says whose it is; `scaling` is None where it was not measured."""

    name: str
    ranks: int
    scaling: Scaling | None


def other_bases(launches: pd.DataFrame, scaling: Scaling, claims: Iterable[Claim]) -> tuple[OtherBase, ...]:
    """Return the bases other than `scaling`'s own: the least rank count, and those of `claims` about speedups.

    `launches` are the rows that `scaling` was made of, `claims` those about this workload.
    """
    measured = {point.ranks for point in scaling.points}
    wanted: dict[int, str] = {min(measured): "common base"}
    for claim in claims:
        if claim.quantity == "speedup" and not claim.erratum:
            wanted.setdefault(claim.base, f"paper {claim.paper}'s base")
    return tuple(
        OtherBase(
            name=name,
            ranks=ranks,
            scaling=scale(launches, base_ranks=ranks) if ranks in measured else None,
        )
        for ranks, name in wanted.items()
        if ranks != scaling.base.ranks
    )
