"""Where probes are kept, which one a machine's predictions use, and the settings that a sweep takes from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.inference import BlockRatio, ratio_over_blocks
from harness.base.errors import UserError
from harness.base.files import folder_atomic, read_bytes
from harness.base.provenance import describe_machine
from harness.schema.claim import EXPERIMENTS
from harness.schema.message_cost import (
    ALLREDUCE,
    PROBE_FILE,
    PROBE_SCHEMA,
    PROBES,
    REDUCTION,
    SAMPLES_FILE,
    MessageCost,
    Probe,
    Setting,
)
from harness.schema.record import decode, encode
from harness.schema.sweep import digest
from harness.schema.workload import Workload

if TYPE_CHECKING:
    from harness.probe.probing import ProbeSamples


def write_probe(found: "ProbeSamples", results: Path) -> Path:
    """Write the record and every sample into ``results/probes/<name>``; return the folder.

    The name is the same for the same ranks, hosts, machine and library: an older probe of these is replaced.
    Columns of samples.parquet: setting, operation, level (text), launch, ranks, bytes, sample (int64), seconds
    (float64, the slowest rank's).

    Raises:
        UserError: the folder cannot be written to.
    """
    import pandas as pd

    rows = [
        (setting, launch, one.operation, one.level, one.ranks, one.bytes, number, seconds)
        for setting, launch, one in found.samples
        for number, seconds in enumerate(one.seconds)
    ]
    columns = ["setting", "launch", "operation", "level", "ranks", "bytes", "sample", "seconds"]
    probe, hosts = found.probe, len(set(found.probe.hosts))
    identity = digest((probe.hosts, probe.machine.fingerprint, probe.mpi_library, probe.launcher))
    folder = results / PROBES / f"{hosts}x{-(-probe.ranks // hosts)}-{identity[:8]}"
    with folder_atomic(folder) as staging:
        pd.DataFrame(rows, columns=columns).to_parquet(staging / SAMPLES_FILE, index=False)
        (staging / PROBE_FILE).write_bytes(encode(probe))
    return folder


def read_probe(path: Path) -> Probe:
    """Read a probe from its folder or file; raise a UserError if it is missing, damaged or of another schema."""
    file = path / PROBE_FILE if path.is_dir() else path
    probe = decode(read_bytes(file, "probe", "run `harness probe` first"), Probe, file)
    if probe.schema != PROBE_SCHEMA:
        raise UserError(f"'{file}' has schema {probe.schema}, this harness reads {PROBE_SCHEMA}: probe again")
    return probe


def newest_probe(results: Path, fingerprint: str) -> Probe | None:
    """Return the valid probe of the machine with this `fingerprint` that was measured last, None if there is none.

    Raises:
        UserError: a probe in `results` is damaged or of another schema version.
    """
    probes = [read_probe(path) for path in sorted((results / PROBES).glob(f"*/{PROBE_FILE}"))]
    usable = [probe for probe in probes if probe.machine.fingerprint == fingerprint and not probe.invalid]
    return max(usable, key=lambda probe: probe.measured, default=None)


_FALSE = 0.03  # of probes in which all ways are equal, and another than the default is chosen nevertheless


@dataclass(frozen=True, kw_only=True, slots=True)
class TunedSetting:
    """A setting of the MPI library and a way to reduce (a value of HARNESS_REDUCTION, empty for the default).

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
        way = f"HARNESS_REDUCTION={self.reduction}" if self.reduction else ""
        mca = " ".join(f"{name}={value}" for name, value in self.setting.mca.items())
        return ", ".join(part for part in (way, mca) if part) or "the defaults"


def fastest_way(probe: Probe, count: int) -> TunedSetting:
    """Return the fastest way to allreduce `count` bytes over the probed ranks.

    The defaults stay unless another way takes less: where Student's interval over blocks of its ratio within rounds
    lies below 1, at 3 % one-sided divided by the number of other ways (Bonferroni): where all are equal, another is
    then chosen in at most 5 % of all probes.

    Raises:
        UserError: the probe holds no allreduce, or none of that size.
    """
    (setting, reduction, usual), *others = _candidates(probe)
    measured = usual.sizes[-1].bytes
    if count > measured:
        raise UserError(
            f"{count:,} bytes are more than the probe's {measured:,}: run `harness probe --largest {count}`"
        )
    usual_s, gain = usual.seconds(count), None
    for other, way, cost in others:
        nearest = min(cost.sizes, key=lambda size: abs(size.bytes - count))
        found = ratio_over_blocks(nearest.ratios, level=1 - 2 * _FALSE / len(others))
        if found and found.interval.high < 1 and (gain is None or found.ratio < gain.ratio):
            setting, reduction, gain = other, way, found
    seconds = usual_s * (gain.ratio if gain else 1.0)
    return TunedSetting(setting=setting, reduction=reduction, seconds=seconds, usual_s=usual_s, gain=gain)


def _candidates(probe: Probe) -> list[tuple[Setting, str, MessageCost]]:
    """Return every way that was measured on all ranks; the harness's default first."""
    found: list[tuple[Setting, str, MessageCost]] = []
    for network in probe.by_setting:
        ours = [one for one in network.costs if one.operation.startswith(REDUCTION) and one.level == network.widest]
        plain = network.find(ALLREDUCE, network.widest)
        found += [(network.setting, cost.operation.removeprefix(REDUCTION), cost) for cost in ours]
        found += [(network.setting, "", plain)] if plain and not ours else []
    if not found:
        raise UserError("the probe measured no allreduce: run `harness probe` again")
    usual = found[0]
    return [(usual[0], "", usual[2]), *found[1:]]


Settings = tuple[tuple[str, str], ...]


def tuned_settings(workload: Workload, results: Path) -> tuple[Settings, str]:
    """Return the environment variables for `workload`, none where the defaults are best, and one sentence on them.

    Raises:
        UserError: there is no probe of this machine, or the workload's network is not one of the papers'.
    """
    if workload.name not in EXPERIMENTS:
        raise UserError(
            f"TUNED=1 knows how many bytes {', '.join(EXPERIMENTS)} exchange, not {workload.name}: leave TUNED out"
        )
    probe = newest_probe(results, describe_machine(gpus=()).fingerprint)
    if probe is None:
        raise UserError(f"no valid probe of this machine in '{results / PROBES}': run `harness probe` first")
    choice = fastest_way(probe, EXPERIMENTS[workload.name].weights_bytes)
    sentence = (
        f"tuned by the probe of {probe.measured:%Y-%m-%d %H:%M} UTC on {probe.ranks} ranks: {choice}, "
        f"{choice.seconds * 1e6:,.0f} us an allreduce"
    )
    if choice.environment:
        sentence += f" against {choice.usual_s * 1e6:,.0f} us by default"
    return tuple(sorted(choice.environment.items())), sentence
