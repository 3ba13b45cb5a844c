"""The options of the batch system, how launches are started by them, and who is asked before they cost much."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.current_user import expanded
from harness.base.errors import UserError
from harness.base.setting_names import setting
from harness.cli.common_options import field_options, option_group, take, where
from harness.schema.option import WHERE
from harness.schema.option import options as schema_options
from harness.sweep.schedulers import known_schedulers
from harness.sweep.site import JobRequest

if TYPE_CHECKING:
    from harness.sweep.job_cost import NodeHours
    from harness.sweep.submission_settings import Submission


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchOptions:
    """What a command line says of the batch system.

    `request` has what is asked of jobs by field of `JobRequest`, None or empty where left open.
    """

    scheduler: str
    site: str | None
    request: Mapping[str, Any]
    template: str | None
    max_node_hours: float
    yes: bool


def take_batch(values: dict[str, Any]) -> BatchOptions:
    """Take the options of the batch system out of the `values` of a command's parameters."""
    values["request"] = {field.name: values.pop(field.name) for field, _ in schema_options(JobRequest)}
    return take(BatchOptions, values)


batch_options = option_group(
    "batch",
    take_batch,
    where(
        "--scheduler",
        common=True,
        default="auto",
        show_default=True,
        metavar="|".join(("auto", *known_schedulers())),
        help="Batch system; auto: the one that is there.",
    ),
    where(
        "--site", common=True, help="Facts of the computing centre: a .toml file, or its name in jobs/sites or here."
    ),
    *field_options(JobRequest, WHERE),
    where("--template", help="Your own job script template, instead of jobs/templates."),
    where("--max-node-hours", type=float, default=100.0, show_default=True, help="Ask before a sweep that costs more."),
    where("-y", "--yes", is_flag=True, help="Do not ask."),
)


def build_submission(options: BatchOptions) -> "tuple[Submission, str]":
    """Return how launches are started, and one sentence that says why there.

    Raises:
        UserError: a setting is wrong, or needs a batch system where there is none.
    """
    from harness.sweep.schedulers import choose_scheduler, scheduler_class
    from harness.sweep.site import find_site, refuse_recorded_secrets, site_file
    from harness.sweep.submission_settings import Submission

    site_name = _path(options.site)
    template = _path(options.template)
    site = find_site(site_name)
    scheduler, reason = choose_scheduler(options.scheduler, site)
    request = _build_request(options, scheduler_class(scheduler).suitable(site.request))
    refuse_recorded_secrets(site, request)
    no_turns = _why_no_turns(request, template)
    if request.mode == "turns" and no_turns:
        raise UserError(f"{setting('mode', 'turns')} cannot be: {no_turns}; say {setting('mode', 'jobs')}")
    if not request.mode:
        request = replace(request, mode="jobs" if no_turns else "turns")
    if request.allocations > 1 and request.mode != "turns":
        raise UserError(
            f"{setting('allocations', request.allocations)} is for {setting('mode', 'turns')}, this is "
            f"{setting('mode', request.mode)}: leave it out"
        )
    if template is not None and not Path(template).is_file():
        raise UserError(f"{setting('template', template)} is not a file: name a Jinja template of yours")
    named_file = site_file(site_name) if site_name else None
    submission = Submission(
        scheduler=scheduler,
        site=site,
        request=request,
        template=str(Path(template).resolve()) if template else None,
        site_file=str(named_file) if named_file else site_name,
    )
    return submission, reason


def _build_request(options: BatchOptions, usual: JobRequest) -> JobRequest:
    """Return what jobs ask for: the `usual` request of the site, changed by the command line's `options`."""
    changes = {name: value for name, value in options.request.items() if value not in (None, ())}
    image = _path(options.request["container"])
    if image and "://" not in image:
        if not Path(image).is_file():
            raise UserError(f"{setting('container', image)} is not a file: name an image, such as image.sif")
        changes["container"] = str(Path(image).resolve())
    return replace(usual, **changes)


def _why_no_turns(request: JobRequest, template: str | None) -> str:
    """Return why launches cannot share an allocation, empty if they can."""
    if template:
        return f"{setting('template')} starts launches one by one"
    if request.requeue or request.signal_s:
        return f"{setting('requeue')} and {setting('signal')} are for launches that follow each other"
    return ""


def _path(text: str | None) -> str | None:
    """Return the path that a user's `text` means if it begins with ``~``, else the text, which may be a name."""
    return str(expanded(text)) if text and text.startswith("~") else text


def refuse_elsewhere(scheduler: str) -> None:
    """Refuse to train in turns where the `scheduler` that was asked for has the nodes: that is done on this machine.

    Raises:
        UserError: another scheduler than that of this machine was named or found.
    """
    from harness.sweep.schedulers import choose_scheduler
    from harness.sweep.site import find_site

    chosen, _ = choose_scheduler(scheduler, find_site(None))
    if chosen != "local":
        raise UserError(
            f"variants train interleaved on this machine, and here {setting('scheduler', chosen)} has the nodes: say "
            f"{setting('scheduler', 'local')} inside a job of your own"
        )


def approval(options: BatchOptions) -> "Callable[[NodeHours], None]":
    """Return what asks the user before a sweep that costs more than ``--max-node-hours``."""

    def approve(cost: "NodeHours") -> None:
        limit = options.max_node_hours
        if options.yes or cost.likely <= limit:
            return
        if not sys.stdin.isatty():
            raise UserError(
                f"this sweep may cost {cost.likely:.1f} node-hours, more than "
                f"{setting('max_node_hours', f'{limit:g}')}: lower {setting('walltime')}, {setting('nodes')} or "
                f"{setting('repeats')}, raise the limit, or say {setting('yes', True)}"
            )
        click.confirm(f"{cost.likely:.1f} node-hours are more than {limit:g}: submit all the same?", abort=True)

    return approve
