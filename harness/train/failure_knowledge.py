"""What the processes of a launch know of failed ranks, and how it becomes the same on all of them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.comm.elastic_world import Member, MembershipChange
from harness.schema.record import FailedRank, LossReason, Stretch


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureNotice:
    """That a rank failed: `when` (s, time.time), for what `reason`, and whether in the middle of a step.

    The reason is None on a rank that learned of the failure from others.
    """

    when: float
    reason: LossReason | None
    in_step: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureKnowledge:
    """What a process knows of failures, to be exchanged.

    `losses` and `stretches` are on record; `failed` are members that have failed since, with the first notice of each;
    `notice` is this process's own of the attempt that has just failed.
    """

    losses: tuple[FailedRank, ...] = ()
    stretches: tuple[Stretch, ...] = ()
    failed: tuple[tuple[Member, FailureNotice], ...] = ()
    notice: FailureNotice | None = None

    def noticing(self, reason: LossReason | None, *, in_step: bool) -> "FailureKnowledge":
        """Return this with a notice of now; as it is where there is one already."""
        if self.notice is not None:
            return self
        return replace(self, notice=FailureNotice(when=time.time(), reason=reason, in_step=in_step))


def merge_knowledge(change: MembershipChange, all_knowledge: Sequence[FailureKnowledge]) -> FailureKnowledge:
    """Return what all members together know of failures.

    Some may know of failures that were recorded, or only noticed, in an attempt that failed on others.
    """
    losses = max((knowledge.losses for knowledge in all_knowledge), key=len)
    stretches = max((knowledge.stretches for knowledge in all_knowledge), key=_steps_of)
    notices = [knowledge.notice for knowledge in all_knowledge if knowledge.notice]
    first = min(notices, key=lambda notice: (notice.reason is None, notice.when), default=None)
    failed: dict[tuple[str, int], tuple[Member, FailureNotice]] = {}
    for knowledge in all_knowledge:
        for member, notice in knowledge.failed:
            failed[member.host, member.pid] = (member, notice)
    for member in change.failed:
        if first:
            failed[member.host, member.pid] = (member, first)
    for loss in losses:
        failed.pop((loss.host, loss.pid), None)
    return FailureKnowledge(losses=losses, stretches=stretches, failed=tuple(failed.values()))


def _steps_of(stretches: Sequence[Stretch]) -> int:
    return sum(stretch.steps for stretch in stretches)
