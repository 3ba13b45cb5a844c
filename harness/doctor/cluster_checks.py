"""The doctor's lines of the scheduler, of the site's file, of the PMI and of a launch on two nodes."""

import shlex
from collections.abc import Iterator

from harness.base.errors import UserError
from harness.doctor.diagnostic import Diagnostic, ok, problem
from harness.schema.layout import Layout
from harness.sweep.schedulers import choose_scheduler, open_scheduler, scheduler_class
from harness.sweep.site import find_site

_NODES = 2


def check_scheduler() -> Iterator[Diagnostic]:
    """Yield the lines of the scheduler, of the site's file, of the PMI and of a launch on two nodes."""
    try:
        site = find_site(None)
        name, why = choose_scheduler("auto", site)
        request = scheduler_class(name).suitable(site.request)
        scheduler = open_scheduler(name, site=site, request=request, oversubscribe=True)
        words = scheduler.launcher(Layout(nodes=_NODES)).words
        limit = scheduler.limit()
    except UserError as error:
        yield problem("scheduler", str(error), "correct it, or give SCHEDULER=local to train on this machine")
        return
    yield ok("scheduler", why.removeprefix("scheduler: "))
    yield ok(
        "site",
        "none: SITE=name takes one of jobs/sites, or a .toml file of yours" if site.name == "unnamed" else site.name,
    )
    chosen = [word for word in words if "pmi" in word]
    yield ok("PMI", chosen[0].lstrip("-") if chosen else "the launcher's own")
    walltime = f", {request.walltime} each" if scheduler.directive else ""
    most = f"; at most {limit.nodes} nodes, cores of a node: {limit.cores_per_node}" if limit and limit.nodes else ""
    yield ok(f"{_NODES} nodes", f"{shlex.join(words)}{walltime}{most}")
