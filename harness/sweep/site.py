"""Request: what is asked of a batch system for every job of a sweep, and how its ranks are started.

Site: the facts of one computing centre, from a file in ``jobs/sites`` or of the user's own.
"""

import fnmatch
import re
import shlex
import socket
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgspec

from harness.base.current_user import base_folder
from harness.base.errors import UserError, unknown
from harness.base.files import read_bytes, resource
from harness.base.secret_text import secrets_in_text
from harness.base.setting_names import setting
from harness.schema.option import check_options, option

LAUNCHERS = ("auto", "srun --mpi=pmix", "srun --mpi=pmi2", "srun --mpi=cray_shasta", "mpirun")
MODES = ("turns", "jobs", "array")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """Settings of the jobs; an empty text means: not asked for.

    `memory` is per node, ``0`` for all of it. `mode`: ``turns`` (one allocation of the largest size, in which all
    layouts train in turns), ``jobs`` (a job for each launch) or ``array`` (an array for each layout).

    Raises:
        UserError: a field is out of its range or could not be written into a directive.
    """

    partition: str = option("Partition or queue.", "", common=True)
    account: str = option("Account that pays.", "", common=True)
    project: str = option("Project (PBS).", "")
    qos: str = option("Quality of service (Slurm).", "")
    constraint: str = option("Feature that nodes must have.", "")
    reservation: str = option("Reservation to run in.", "")
    mode: str = option(
        "turns: all layouts interleaved in one job; jobs: one for each launch; array: one for each layout "
        "[default: turns].",
        "",
        values="|".join(MODES),
        common=True,
    )
    allocations: int = option("Allocations in which an interleaved sweep is repeated [default: 1].", 1, least=1)
    walltime: str = option(
        "Time limit of a job, H:MM:SS or D-HH:MM:SS, or by nodes: 1:00:00,8=0:20:00 (from 8 nodes on) "
        "[default: interleaved from the last launches, else 0:30:00; of a launch 1:00:00].",
        "",
        common=True,
    )
    memory: str = option("Memory per node, such as 16G.", "")
    exclusive: bool = option(
        "Whole nodes, or nodes shared with others [default: exclusive].", True, opposite="share-nodes"
    )
    requeue: bool = option("Let the scheduler start interrupted jobs again.", False)
    signal_s: int = option("End the ranks so many seconds before the limit (Slurm).", 0, name="signal", least=0)
    after: str = option("Job that must have succeeded first.", "")
    launcher: str = option("auto, mpirun, or srun with a kind of PMI such as 'srun --mpi=pmix'.", "auto")
    extra: tuple[str, ...] = option("Any other options of a directive, as the scheduler reads them.", ())
    container: str = option("Apptainer or Singularity image in which the ranks run.", "")
    max_jobs: int = option("Jobs submitted at a time [default: 500].", 500, least=1)
    retries: int = option("Try a launch that fails again, so many times [default: 0].", 0, least=0)

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("partition", "account", "project", "qos", "constraint", "reservation", "after"):
            value = getattr(self, name)
            # A directive is read by the scheduler, not by the shell: quoting would not help.
            if value and not re.fullmatch(r"[\w.,:;@%&|*=\[\]()/+-]+", value, flags=re.ASCII):
                raise UserError(f"{setting(name, value)} cannot be in a job script: use one word without quotes")
        for line in self.extra:
            try:
                words = shlex.split(line)
            except ValueError as error:
                raise UserError(
                    f"{setting('extra', line)} cannot be in a job script ({error}): close the quotation"
                ) from error
            if not words or not words[0].startswith("-") or not line.isprintable():  # it would not be one directive
                say = f"write it as in a directive, such as {setting('extra', '--gres=nvme:1')}"
                raise UserError(f"{setting('extra', line)} is not an option: {say}")
        _walltimes(self.walltime or _LAUNCH_LIMIT)
        if self.memory and not re.fullmatch(r"0|[1-9]\d*[KMGT]", self.memory):
            raise UserError(
                f"{setting('memory', self.memory)} is not an amount: write 16G (or K, M, T), or 0 for all of a node"
            )
        if self.launcher not in LAUNCHERS:
            raise unknown("launcher", self.launcher, LAUNCHERS)
        if self.mode not in ("", *MODES):
            raise unknown("mode", self.mode, MODES)

    def limit_s(self, nodes: int) -> int:
        """Return the seconds that one launch on `nodes` nodes may take."""
        limits = _walltimes(self.walltime or _LAUNCH_LIMIT)
        return next(limit for least, limit in reversed(limits) if nodes >= least)


_LAUNCH_LIMIT = "1:00:00"  # where none is asked for


def _walltimes(text: str) -> list[tuple[int, int]]:
    """Return pairs of the fewest nodes that a time limit is for and its seconds, the fewest first.

    Raises:
        UserError: the text is not such a list.
    """
    first, *others = text.split(",")
    limits = {1: walltime_seconds(first)}
    for part in others:
        nodes, _, limit = part.partition("=")
        if not re.fullmatch(r"[1-9]\d{0,6}", nodes, flags=re.ASCII):
            raise UserError(
                f"{setting('walltime', text)} is not a list of time limits: write 1:00:00,8=0:20:00 (from 8 nodes on)"
            )
        limits[int(nodes)] = walltime_seconds(limit)
    return sorted(limits.items())


def walltime_seconds(walltime: str) -> int:
    """Return the seconds of a time limit ``H:MM:SS`` or ``D-HH:MM:SS``; raise a UserError if it is neither, or 0."""
    right = re.fullmatch(r"(\d{1,3}-)?\d{1,5}:[0-5]\d:[0-5]\d", walltime, flags=re.ASCII)
    total = int(clock_seconds(walltime)) if right else 0
    if not total:
        raise UserError(
            f"{setting('walltime', walltime)} is not a time limit: write hours:minutes:seconds, such as 0:30:00"
        )
    return total


def clock_seconds(text: str) -> float:
    """Return the seconds of ``D-HH:MM:SS``, ``HH:MM:SS`` or ``MM:SS.mmm``; raise a ValueError if it is none."""
    if not re.fullmatch(r"([0-9]{1,9}-)?([0-9]{1,9}:){0,2}[0-9]{1,9}(\.[0-9]{1,9})?", text):
        raise ValueError(f"{text!r} is no time")
    days, _, clock = text.rpartition("-")
    hours, minutes, rest = ["0", "0", *clock.split(":")][-3:]
    return int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + float(rest)


def size_bytes(text: str) -> int:
    """Return an amount of memory as schedulers write it, such as ``16384kb`` or ``5266672K``; 0 for none."""
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)([kmgtp]?)b?", text.lower())
    return int(float(match[1]) * 1024 ** "_kmgtp".find(match[2] or "_")) if match else 0


def walltime(total: float) -> str:
    """Return seconds as ``H:MM:SS``, rounded up."""
    whole = -int(-total // 1)
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


SITES = "jobs/sites"
BINDINGS = ("cores", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A partition or queue and its limits, None where there is none or it is not known.

    `numa_domains` and `memory_mb` are those of a node.
    """

    name: str
    nodes: int | None = None
    cores_per_node: int | None = None
    numa_domains: int | None = None
    gpus_per_node: int | None = None
    memory_mb: int | None = None
    walltime: str | None = None
    default: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What the harness must know of a centre; every field may be left out.

    `hosts` are patterns of login node names by which the site is recognised. `modules` are loaded and `setup`
    lines run before the ranks start. `binding` is ``cores`` or ``none``; `launcher_options` are further words
    for the launcher. `network` is the interface (or list) that MPI uses over TCP. `scratch` is exported as
    TMPDIR. `request` holds the settings a user need not repeat.

    Raises:
        UserError: a field is out of its range.
    """

    name: str = "unnamed"
    note: str = ""
    scheduler: str = "auto"
    hosts: tuple[str, ...] = ()
    partition: tuple[Partition, ...] = ()
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    binding: str = "cores"
    launcher_options: tuple[str, ...] = ()
    network: str = ""
    scratch: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    request: JobRequest = field(default_factory=JobRequest)

    def __post_init__(self) -> None:
        if self.binding not in BINDINGS:
            raise unknown("site's binding", self.binding, BINDINGS)
        for name in self.environment:
            if not re.fullmatch(r"[A-Za-z_]\w*", name, flags=re.ASCII):
                raise UserError(f"site's environment has '{name}', which is not a variable's name")

    def limits(self, partition: str) -> Partition | None:
        """Return the partition of that name, the default one for an empty name, None where nothing is known."""
        if partition:
            return next((stated for stated in self.partition if stated.name == partition), None)
        if len(self.partition) == 1:
            return self.partition[0]
        return next((stated for stated in self.partition if stated.default), None)


def known_sites() -> dict[str, Path]:
    """Return the site files by name: those that travel with the harness, and the user's own, which come first.

    The user's are in ``mpi-tf-harness/sites`` below $XDG_CONFIG_HOME, else below ~/.config.
    """
    folders = [resource(SITES)]
    config = base_folder("XDG_CONFIG_HOME", ".config")
    if config is not None:
        folders.append(config / "mpi-tf-harness" / "sites")
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def read_site(path: Path) -> Site:
    """Read a site file; raise a UserError if it is missing, is not TOML, or has a field that is unknown or wrong."""
    content = read_bytes(path, "site file")
    try:
        table = msgspec.toml.decode(content)
        _refuse_strangers(table, Site, path)
        _refuse_strangers(table.get("request", {}), JobRequest, path)
        for partition in table.get("partition", []):
            _refuse_strangers(partition, Partition, path)
        return msgspec.convert({"name": path.stem} | table, Site)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UserError(f"site file '{path}' is wrong: {error}") from error


def site_file(name: str) -> Path | None:
    """Return the path of the site file `name`, or that of NAME.toml in the current folder; None where neither is."""
    path = Path(name if name.endswith(".toml") else f"{name}.toml")
    return path.resolve() if name.endswith(".toml") or path.is_file() else None


def find_site(name: str | None) -> Site:
    """Return the site called `name` (or that of `site_file`), or the one whose `hosts` match this machine.

    Raises:
        UserError: there is no such site, or its file is wrong.
    """
    sites = known_sites()
    if name:
        path = site_file(name)
        if path is None and name not in sites:
            raise unknown("site", name, sites)
        return read_site(path or sites[name])
    here = {socket.gethostname(), socket.getfqdn()}
    for path in sites.values():
        site = read_site(path)
        if any(fnmatch.fnmatch(host, pattern) for host in here for pattern in site.hosts):
            return site
    return Site()


def refuse_recorded_secrets(site: Site, request: JobRequest) -> None:
    """Refuse secrets in what job scripts and ``submission.json`` repeat of a `site` and a `request`.

    Raises:
        UserError: naming the field and the secret, not its value.
    """
    texts = {
        "environment": [f"{name}={value}" for name, value in site.environment.items()],
        "setup": site.setup,
        "launcher_options": [" ".join(site.launcher_options)],
        "extra": [*site.request.extra, *request.extra],
    }
    for field_name, lines in texts.items():
        for secret in secrets_in_text("\n".join(lines)):
            raise UserError(
                f"{field_name} of site '{site.name}' has '{secret.name}', which looks like a secret and would stand in "
                "scripts and records: keep the value in a file of your own that a line of setup reads"
            )


def _refuse_strangers(table: object, kind: type, path: Path) -> None:
    """Refuse a misspelt field: it would be ignored without a word."""
    allowed = {field.name for field in fields(kind)}
    for name in table if isinstance(table, dict) else ():
        if name not in allowed:
            raise unknown(f"field of site file '{path}'", name, allowed)
