"""DeviceEnergy: what a GPU or a processor of a launch used."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceEnergy:
    """One device of one host from before a launch's first epoch to after its last, evaluations included.

    Of a script it is from the first timed epoch on; of a launch in turns in its turns, `seconds` together; of one that
    was taken up again in its last attempt.

    `device` is a GPU's UUID, or a processor's name in RAPL such as package-0. `counter_j` is what the device's own
    counter of energy (NVML, RAPL) went up by, in joules, by `samples` readings; None where there is none. `missing`
    names what the device or its driver does not count.
    """

    host: str
    device: str
    seconds: float
    samples: int
    counter_j: float | None = None
    missing: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, or a part of one."""
        return self.device.startswith(("GPU-", "MIG-"))

    @property
    def joules(self) -> float | None:
        """The energy by the device's own counter."""
        return self.counter_j

    @property
    def watts(self) -> float | None:
        """The mean power, None where nothing was counted."""
        return self.joules / self.seconds if self.joules is not None and self.seconds else None
