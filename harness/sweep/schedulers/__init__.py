"""Where jobs go: every module here is a scheduler, with a class called `Scheduler` and a template of its own."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.base.errors import unknown

if TYPE_CHECKING:
    from harness.sweep.scheduler import Scheduler, SiteFinding
    from harness.sweep.site import JobRequest, Site


FALLBACK = "local"


def known_schedulers() -> tuple[str, ...]:
    """Return the names of all schedulers: the modules of this package."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


def scheduler_class(name: str) -> "type[Scheduler]":
    """Return the class of the scheduler called `name`.

    Raises:
        UserError: there is no such scheduler.
    """
    if name not in known_schedulers():
        raise unknown("SCHEDULER", name, ("auto", *known_schedulers()))
    found: type[Scheduler] = importlib.import_module(f"{__name__}.{name}").Scheduler
    return found


def open_scheduler(
    name: str, *, oversubscribe: bool = False, site: "Site | None" = None, request: "JobRequest | None" = None
) -> "Scheduler":
    """Return the scheduler called `name`, for the jobs that `request` describes, at `site`.

    Raises:
        UserError: there is no such scheduler, or it does not know what the request asks for.
    """
    return scheduler_class(name)(oversubscribe=oversubscribe, site=site, request=request)


def choose(name: str, site: "Site") -> tuple[str, str]:
    """Return the scheduler for `name`, which may be ``auto``, and one sentence that says why it was chosen.

    The site's own choice comes first, then what answers on this machine; with neither it is this machine.

    Raises:
        UserError: there is no such scheduler, or one is there and does not answer.
    """
    if name != "auto":
        return scheduler_class(name).name, f"scheduler: {name}, as asked"
    if site.scheduler != "auto":
        return scheduler_class(site.scheduler).name, f"scheduler: {site.scheduler}, by site {site.name}"
    for candidate in known_schedulers():
        found = scheduler_class(candidate).detect()
        if found:
            return candidate, f"scheduler: {candidate}, found {found} (SCHEDULER={FALLBACK} runs here instead)"
    others = " or ".join(candidate for candidate in known_schedulers() if candidate != FALLBACK)
    return FALLBACK, f"scheduler: {FALLBACK}, no {others} here: a core of this machine stands for a node"


def check_site(site: "Site") -> "Iterator[SiteFinding]":
    """Yield what the scheduler here says to the statements of `site`.

    Raises:
        UserError: the scheduler does not answer.
    """
    from harness.sweep.scheduler import SiteFinding

    name, why = choose("auto", site)
    yield SiteFinding(text=f"site {site.name}: {why}")
    request = scheduler_class(name).suitable(site.request)
    yield from open_scheduler(name, site=site, request=request).findings()
