"""DeviceEnergy: what a GPU or a processor of a launch used, and what held it down."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceEnergy:
    """One device of one host from before a launch's first epoch to after its last, evaluations included.

    Of a script it is from the first timed epoch on; of a launch in turns in those of its turns in which the counters
    were read at least twice, `seconds` together.

    `device` is a GPU's UUID, or a processor's name in RAPL such as package-0. `counter_j` is what the device's own
    counter of energy (NVML, RAPL) went up by, `integral_j` the integral of its power over the samples, in joules; None
    where there is no such counter. `limit_w` is the power limit, `clock_mhz` the mean clock of a GPU's multiprocessors.
    `held_down` has the share of samples in which the clock was held down, by reason. `missing` names what the device or
    its driver does not count.
    """

    host: str
    device: str
    seconds: float
    samples: int
    counter_j: float | None = None
    integral_j: float | None = None
    limit_w: float | None = None
    clock_mhz: float | None = None
    held_down: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, or a part of one."""
        return self.device.startswith(("GPU-", "MIG-"))

    @property
    def joules(self) -> float | None:
        """The energy by the device's own counter, by the integral of power where it has none."""
        return self.integral_j if self.counter_j is None else self.counter_j

    @property
    def watts(self) -> float | None:
        """The mean power, None where nothing was counted."""
        return self.joules / self.seconds if self.joules is not None and self.seconds else None

    @property
    def difference(self) -> float | None:
        """How far the integral of power is from the counter, relative to it; None where one of them is not known."""
        if self.counter_j is None or self.integral_j is None or self.counter_j <= 0:
            return None
        return self.integral_j / self.counter_j - 1
