"""All checks, in the order of the table."""

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.base.errors import UserError
from harness.doctor import machine, mpi
from harness.doctor.machine import PROBLEM, Diagnostic, ok, problem
from harness.schema.layout import Layout
from harness.sweep.schedulers import choose, open_scheduler, scheduler_class
from harness.sweep.site import find_site

_NODES = 2


def check_scheduler() -> Iterator[Diagnostic]:
    """Yield the lines of the scheduler, of the site's file, of the PMI and of a launch on two nodes."""
    try:
        site = find_site(None)
        name, why = choose("auto", site)
        request = scheduler_class(name).suitable(site.request)
        scheduler = open_scheduler(name, site=site, request=request, oversubscribe=True)
        words = scheduler.launcher(Layout(nodes=_NODES)).words
        limit = scheduler.limit()
    except UserError as error:
        yield problem("scheduler", str(error), "correct it, or give SCHEDULER=local to train on this machine")
        return
    yield ok("scheduler", why.removeprefix("scheduler: "))
    yield ok("site", "none: `harness site list` names those there are" if site.name == "unnamed" else site.name)
    chosen = [word for word in words if "pmi" in word]
    yield ok("PMI", chosen[0].lstrip("-") if chosen else "the launcher's own")
    there = f"; at most {limit.nodes} nodes, cores of a node: {limit.cores_per_node}" if limit and limit.nodes else ""
    walltime = f", {request.walltime} each" if scheduler.directive else ""
    yield ok(f"{_NODES} nodes", f"{shlex.join(words)}{walltime}{there}")


def diagnose(data_dir: Path | None) -> Iterator[Diagnostic]:
    """Yield every check as it is made; about 15 s altogether. `data_dir` is the data folder, None for the default."""
    yield machine.check_load()  # first: the doctor's own processes come later
    yield machine.check_python()
    tensorflow = machine.try_tensorflow()
    yield machine.check_tensorflow(tensorflow)
    for name, title in (("keras", "Keras"), ("numpy", "NumPy"), ("mpi4py", "mpi4py")):
        yield machine.check_package(name, title)
    launcher = mpi.find()
    yield from mpi.check_mpi(launcher)
    yield from check_scheduler()
    yield from machine.check_compilers(None if isinstance(launcher, UserError) else launcher.path)
    yield from machine.check_cores()
    yield machine.check_memory()
    yield machine.check_gpus(tensorflow.gpus)
    yield machine.check_cache()
    yield from machine.check_data(data_dir)
    yield machine.check_commit()


def exit_code(checks: Iterable[Diagnostic]) -> int:
    """Return 0 when everything that runs need works, else 1."""
    return 1 if any(check.status == PROBLEM for check in checks) else 0
