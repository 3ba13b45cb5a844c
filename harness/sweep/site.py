"""Site: the facts of one computing centre, from a file in ``jobs/sites`` or of the user's own."""

import fnmatch
import os
import re
import socket
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgspec

from harness.base.errors import UserError, unknown
from harness.base.files import resource
from harness.sweep.job_options import JobRequest

SITES = "jobs/sites"
BINDINGS = ("cores", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A partition or queue and its limits, None where there is none or it is not known. `memory_mb` per node."""

    name: str
    nodes: int | None = None
    cores_per_node: int | None = None
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
            return next((known for known in self.partition if known.name == partition), None)
        if len(self.partition) == 1:
            return self.partition[0]
        return next((known for known in self.partition if known.default), None)


def known_sites() -> dict[str, Path]:
    """Return the site files by name: those that travel with the harness, and the user's own, which come first.

    The user's are in ``mpi-tf-harness/sites`` below $XDG_CONFIG_HOME, else below ~/.config.
    """
    base = os.environ.get("XDG_CONFIG_HOME")
    own = (Path(base) if base else Path.home() / ".config") / "mpi-tf-harness" / "sites"
    return {path.stem: path for folder in (resource(SITES), own) for path in sorted(folder.glob("*.toml"))}


def read_site(path: Path) -> Site:
    """Read a site file.

    Raises:
        UserError: it cannot be read, is not TOML, or has a field that is unknown or of another type.
    """
    try:
        table = msgspec.toml.decode(path.read_bytes())
        _refuse_strangers(table, Site, path)
        _refuse_strangers(table.get("request", {}), JobRequest, path)
        for partition in table.get("partition", []):
            _refuse_strangers(partition, Partition, path)
        return msgspec.convert({"name": path.stem} | table, Site)
    except OSError as error:
        raise UserError(f"site file '{path}' cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UserError(f"site file '{path}' is wrong: {error}") from error


def site_file(name: str) -> Path | None:
    """Return the path of the site file `name`, or that of NAME.toml in the current folder; None where neither is."""
    own = Path(name if name.endswith(".toml") else f"{name}.toml")
    return own.resolve() if name.endswith(".toml") or own.is_file() else None


def find_site(name: str | None) -> Site:
    """Return the site called `name` (or that of `site_file`), or the one whose `hosts` match this machine.

    Raises:
        UserError: there is no such site, or its file is wrong.
    """
    known = known_sites()
    if name:
        own = site_file(name)
        if own is None and name not in known:
            raise unknown("SITE", name, known)
        return read_site(own or known[name])
    here = {socket.gethostname(), socket.getfqdn()}
    for path in known.values():
        site = read_site(path)
        if any(fnmatch.fnmatch(host, pattern) for host in here for pattern in site.hosts):
            return site
    return Site()


def _refuse_strangers(table: object, kind: type, path: Path) -> None:
    """Refuse a misspelt field: it would be ignored without a word."""
    allowed = {field.name for field in fields(kind)}
    for name in table if isinstance(table, dict) else ():
        if name not in allowed:
            raise unknown(f"field of site file '{path}'", name, allowed)
