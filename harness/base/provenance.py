"""Machine and versions: what a run's speed and result depend on."""

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from harness.base.processes import Reply, run_program
from harness.base.record_words import HOST, check_text
from harness.base.scratch import SEGMENTS, SESSIONS
from harness.base.secret_text import WITHHELD, is_secret_name, secrets_in_text

# Variables that change how fast or on what a run computes; secrets and paths stay out of the record.
_PREFIXES = (
    *("CUDA_VISIBLE_", "NCCL_"),
    *("FI_", "I_MPI_", "MPICH_", "MPI4PY_", "OMPI_MCA_", "PRTE_MCA_", "UCX_"),
    *("DNNL_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_"),
    *("TF_CPP_", "TF_ENABLE_", "TF_NUM_", "TF_XLA_", "XLA_"),
    *("HARNESS_FORK", "HARNESS_OVERLAP", "HARNESS_REDUCTION", "LD_PRELOAD"),
)
# What mpirun itself sets for every rank, none of it a setting.
_TOLD = ("OMPI_MCA_PREFIXES", "OMPI_MCA_initial_wdir", "OMPI_MCA_cpu_type", "OMPI_MCA_num_procs", SEGMENTS, SESSIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The first rank's machine. `memory_bytes` is the total; `fingerprint` hashes what determines its speed."""

    hostname: str
    cpu: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    os: str
    fingerprint: str

    def __post_init__(self) -> None:
        check_text("host", self.hostname, HOST, optional=True)


def package_version(name: str) -> str:
    """Return the installed version of a Python package, empty when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def git_commit() -> tuple[str, bool]:
    """Return the checkout's commit and whether tracked files differ from it; ("", False) outside a checkout."""
    folder = Path(__file__).parent.parent.parent
    if not (folder / ".git").exists():
        return "", False
    head = git(folder, "rev-parse", "HEAD")
    changed = git(folder, "status", "--porcelain", "--untracked-files=no")
    if head.code != 0 or changed.code != 0:  # no git here, or a checkout without commits
        return "", False
    return head.out.strip(), bool(changed.out.strip())


def has_commit(folder: Path, commit: str) -> bool:
    """Return whether the checkout in `folder` has `commit`: a shallow one may not."""
    return git(folder, "cat-file", "-e", f"{commit}^{{commit}}").code == 0


_GIT_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")


def git(folder: Path, *arguments: str) -> Reply:
    """Run git in `folder`, whoever owns it, and whatever repository a hook around this process works on."""
    without = [word for name in _GIT_PLACES for word in ("-u", name)]
    return run_program(["env", *without, "git", "-c", f"safe.directory={folder}", "-C", str(folder), *arguments])


def processor_name(facts: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name as the kernel has it; where it has none, as on ARM, `cpuinfo` starts programs for it.

    `cpuinfo` takes a second, in which the other ranks of a launch would wait, and gives the kernel's name too.
    """
    name = re.search(r"^model name\s*:\s*(\S.*)$", _text(str(facts)), re.MULTILINE)
    if name:
        return name[1].rstrip()
    import cpuinfo

    return str(cpuinfo.get_cpu_info().get("brand_raw", platform.processor() or platform.machine()))


def describe_machine(gpus: tuple[str, ...]) -> Machine:
    """Return this host's processor, cores, memory and the given GPUs."""
    cpu = processor_name()
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    memory = psutil.virtual_memory().total
    gibibytes = round(memory / 2**30)  # the kernel's total differs by a few pages between boots
    identity = "|".join([cpu, str(cores), str(gibibytes), platform.machine(), *gpus])
    return Machine(
        hostname=platform.node(),
        cpu=cpu,
        cores=cores,
        memory_bytes=memory,
        gpus=gpus,
        os=f"{platform.system()} {platform.release()}",
        fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:12],
    )


def describe_system() -> dict[str, str]:
    """Return what besides its parts decides how fast this host is, by name; what is not known is left out."""
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    fabric = sorted(device.name for device in Path("/sys/class/infiniband").glob("*"))
    links = [f"{name} {link.speed} Mbit/s" for name, link in sorted(psutil.net_if_stats().items()) if link.speed]
    facts = {
        "clock source": _text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "container": next((name for name, sign in _SIGNS.items() if sign in os.environ or Path(sign).exists()), ""),
        "frequency governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "huge pages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "InfiniBand": ", ".join(fabric),
        "network": ", ".join(links),
        "NUMA nodes": str(nodes) if nodes else "",
    }
    return {name: value for name, value in facts.items() if value}


_SIGNS = {"Apptainer": "APPTAINER_CONTAINER", "Docker": "/.dockerenv", "Podman": "/run/.containerenv"}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def relevant_environment() -> dict[str, str]:
    """Return the environment variables that can change a run's speed; what looks like a secret without its value."""
    variables = {}
    for name, value in sorted(os.environ.items()):
        if name.startswith(_PREFIXES) and name not in _TOLD:
            is_secret = is_secret_name(name) or any(secrets_in_text(value))
            variables[name] = WITHHELD if is_secret else value
    return variables
