"""The setting and the reduction that a probe found fastest, for a sweep that asks for them."""

from dataclasses import dataclass, replace
from pathlib import Path

from harness.analysis.confidence_intervals import BlockRatio, ratio_over_blocks
from harness.base.errors import UserError
from harness.base.provenance import describe_machine
from harness.base.setting_names import setting
from harness.probe.probe_store import newest_probe
from harness.schema.claim import EXPERIMENTS
from harness.schema.message_cost import ALLREDUCE, PROBES, REDUCTION, MessageCost, Probe, Setting
from harness.schema.workload import Workload

_FALSE_ALARMS = 0.03  # of probes in which all candidates are equal, and another than the default is chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedSetting:
    """A setting of the MPI library and a reduction (a value of HARNESS_REDUCTION, empty for the default).

    `seconds` is what one allreduce takes with it, `usual_s` with the defaults, `gain` their ratio over blocks.
    """

    setting: Setting
    reduction: str
    seconds: float
    usual_s: float
    gain: BlockRatio | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make the ranks run so; empty where the defaults are best."""
        variables = {f"OMPI_MCA_{name}": value for name, value in self.setting.mca.items()}
        return variables | ({"HARNESS_REDUCTION": self.reduction} if self.reduction else {})

    def __str__(self) -> str:
        reduction = f"HARNESS_REDUCTION={self.reduction}" if self.reduction else ""
        mca = " ".join(f"{name}={value}" for name, value in self.setting.mca.items())
        return ", ".join(part for part in (reduction, mca) if part) or "the defaults"


def fastest_allreduce(probe: Probe, count: int) -> TunedSetting:
    """Return the fastest setting and reduction to allreduce `count` bytes over the probed ranks.

    The defaults stay unless another candidate takes less time: Student's interval over blocks of its ratio within
    rounds must be below 1, at 3 % one-sided divided by the number of other candidates (Bonferroni). So where all are
    equal, another one is chosen in at most 5 % of all probes.

    Raises:
        UserError: the probe holds no allreduce, or none of that size.
    """
    usual, *others = _candidates(probe)
    measured = usual.cost.sizes[-1].bytes
    if count > measured:
        raise UserError(
            f"{count:,} bytes are more than the probe's {measured:,}: probe again with {setting('largest', count)}"
        )
    usual_s = usual.cost.seconds(count)
    best = usual
    gain: BlockRatio | None = None
    for candidate in others:
        nearest = min(candidate.cost.sizes, key=lambda size: abs(size.bytes - count))
        ratio = ratio_over_blocks(nearest.ratios, level=1 - 2 * _FALSE_ALARMS / len(others))
        if ratio and ratio.interval.high < 1 and (gain is None or ratio.ratio < gain.ratio):
            best = candidate
            gain = ratio
    return TunedSetting(
        setting=best.setting,
        reduction=best.reduction,
        seconds=usual_s * (gain.ratio if gain else 1.0),
        usual_s=usual_s,
        gain=gain,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """A `setting` and a `reduction` (empty for the default one), and what an allreduce costs with them."""

    setting: Setting
    reduction: str
    cost: MessageCost


def _candidates(probe: Probe) -> list[_Candidate]:
    """Return every candidate that was measured on all ranks; the harness's default first."""
    candidates: list[_Candidate] = []
    for network in probe.by_setting:
        setting = network.setting
        ours = [cost for cost in network.costs if cost.operation.startswith(REDUCTION) and cost.level == network.widest]
        plain = network.find(ALLREDUCE, network.widest)
        for cost in ours:
            candidates.append(_Candidate(setting=setting, reduction=cost.operation.removeprefix(REDUCTION), cost=cost))
        if plain and not ours:
            candidates.append(_Candidate(setting=setting, reduction="", cost=plain))
    if not candidates:
        raise UserError("the probe measured no allreduce: run `harness probe` again")
    return [replace(candidates[0], reduction=""), *candidates[1:]]


Settings = tuple[tuple[str, str], ...]


def tuned_settings(workload: Workload, results: Path) -> tuple[Settings, str]:
    """Return the environment variables for `workload`, none where the defaults are best, and one sentence on them.

    Raises:
        UserError: there is no probe of this machine, or the workload's network is not one of the papers'.
    """
    if workload.name not in EXPERIMENTS:
        raise UserError(
            f"{setting('tuned', True)} knows how many bytes {', '.join(EXPERIMENTS)} exchange, not {workload.name}: "
            "leave it out"
        )
    probe = newest_probe(results, describe_machine(gpus=()).fingerprint)
    if probe is None:
        raise UserError(f"no valid probe of this machine in '{results / PROBES}': run `harness probe` first")
    choice = fastest_allreduce(probe, EXPERIMENTS[workload.name].weights_bytes)
    sentence = (
        f"tuned by the probe of {probe.measured:%Y-%m-%d %H:%M} UTC on {probe.ranks} ranks: {choice}, "
        f"{choice.seconds * 1e6:,.0f} us an allreduce"
    )
    if choice.environment:
        sentence += f" against {choice.usual_s * 1e6:,.0f} us by default"
    return tuple(sorted(choice.environment.items())), sentence
