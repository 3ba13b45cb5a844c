"""The stack of a measurement: everything that may have changed between two sessions, and what of it has."""

from dataclasses import dataclass

from harness.regression.measurement import Measurement

_VERSIONS = ("python", "tensorflow", "keras", "numpy", "mpi4py", "mpi_library")
_OF_MANY_LINES = 160  # characters of a value that is shown


@dataclass(frozen=True, kw_only=True, slots=True)
class StackLine:
    """One part of the stack, as it was in the baseline and as it is now; an empty text where it was not set."""

    name: str
    before: str
    now: str

    @property
    def changed(self) -> bool:
        """Whether it differs."""
        return self.before != self.now


def stack_of(measurement: Measurement) -> dict[str, str]:
    """Return the parts of the stack by name: machine, code, versions, settings."""
    machine = measurement.machine
    software = measurement.software
    versions = {name.replace("_", " "): str(getattr(software, name)) for name in _VERSIONS}
    facts = {
        "host": machine.hostname,
        "processor": f"{machine.cpu}, {machine.cores} cores",
        "memory": f"{machine.memory_bytes / 2**30:.0f} GiB",
        "GPUs": ", ".join(machine.gpus),
        "harness": f"{software.harness}, commit {measurement.state}",
        "code of harness and script": software.code[:12],
        "script": str(measurement.workload.script.path) if measurement.workload.script else "",
        **versions,
        **measurement.conditions,
    }
    return {name: value[:_OF_MANY_LINES] for name, value in facts.items() if value}


def compare_stacks(before: Measurement, now: Measurement) -> tuple[StackLine, ...]:
    """Return every part of both stacks, what changed first."""
    old = stack_of(before)
    new = stack_of(now)
    lines = [StackLine(name=name, before=old.get(name, ""), now=new.get(name, "")) for name in (old | new)]
    return tuple(sorted(lines, key=lambda line: not line.changed))


def version_changes(before: Measurement, now: Measurement) -> tuple[tuple[str, str, str], ...]:
    """Return name, old and new value of every version of Python and its packages, and of MPI, that differs."""
    changes = [(name, str(getattr(before.software, name)), str(getattr(now.software, name))) for name in _VERSIONS]
    return tuple((name.replace("_", " "), old, new) for name, old, new in changes if old != new)
