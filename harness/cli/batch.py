"""The options that say where the launches of a sweep run and what is asked of the batch system."""

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness.base.errors import UserError
from harness.sweep.schedulers import known_schedulers

if TYPE_CHECKING:
    from harness.sweep.job_groups import Cost
    from harness.sweep.job_options import Request
    from harness.sweep.submission import Submission


Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Any], Any]

_OPTIONS: tuple[Option, ...] = (
    click.option(
        "--scheduler", default="auto", show_default=True, help=f"auto (what is there), {', '.join(known_schedulers())}."
    ),
    click.option("--site", help="Facts of the computing centre: a name of jobs/sites or a .toml file."),
    click.option("--nested", is_flag=True, help="One allocation of the largest size; the smaller points run inside."),
    click.option("--array", is_flag=True, help="One job array for each layout instead of a job for each launch."),
    click.option("--partition", help="Partition or queue."),
    click.option("--account", help="Account that pays."),
    click.option("--project", help="Project (PBS)."),
    click.option("--qos", help="Quality of service (Slurm)."),
    click.option("--constraint", help="Feature that nodes must have."),
    click.option("--reservation", help="Reservation to run in."),
    click.option("--walltime", help="Time limit of a launch, H:MM:SS [default: 1:00:00]."),
    click.option("--memory", help="Memory per node, such as 16G."),
    click.option("--exclusive/--share-nodes", default=None, help="Nodes for ourselves [default: exclusive]."),
    click.option("--mail", help="Address to write to when a job ends."),
    click.option("--requeue/--no-requeue", default=None, help="Let the scheduler start interrupted jobs again."),
    click.option("--signal", "signal_s", type=int, help="End the ranks so many seconds before the limit (Slurm)."),
    click.option("--after", help="Job that must have succeeded first."),
    click.option("--launcher", help="auto, 'srun --mpi=pmix', 'srun --mpi=pmi2' or mpirun."),
    click.option("--max-jobs", type=int, help="Jobs submitted at a time [default: 500]."),
    click.option("--template", help="Your own job script template, instead of jobs/templates."),
)
_COST_OPTIONS: tuple[Option, ...] = (
    click.option("--max-node-hours", type=float, default=100.0, show_default=True, help="Ask before costing more."),
    click.option("--yes", is_flag=True, help="Do not ask."),
)


def batch_options(command: Command) -> Command:
    """Add the options of the batch system to a click command."""
    command = cost_options(command)
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def cost_options(command: Command) -> Command:
    """Add the options that limit what a command may cost to a click command."""
    for option in reversed(_COST_OPTIONS):
        command = option(command)
    return command


def build_submission(options: dict[str, Any]) -> "tuple[Submission, str]":
    """Return how launches are started, and one sentence that says why there.

    Raises:
        UserError: a setting is wrong, or needs a batch system where there is none.
    """
    from harness.sweep.schedulers import choose, scheduler_class
    from harness.sweep.site import find_site
    from harness.sweep.submission import Submission

    site = find_site(options["site"])
    scheduler, why = choose(options["scheduler"], site)
    request = _request(scheduler_class(scheduler).suitable(site.request), options)
    template = options["template"]
    if template is not None:
        if not Path(template).is_file():
            raise UserError(f"TEMPLATE={template} is no file: name a Jinja template of yours")
        template = str(Path(template).resolve())
    return Submission(scheduler=scheduler, site=site, request=request, template=template), why


def approval(options: dict[str, Any]) -> "Callable[[Cost], None]":
    """Return what asks the user before a sweep that costs more than ``--max-node-hours``."""

    def approve(cost: "Cost") -> None:
        limit = options["max_node_hours"]
        if options["yes"] or cost.likely <= limit:
            return
        if not sys.stdin.isatty():
            raise UserError(
                f"this sweep may cost {cost.likely:.1f} node-hours, more than MAX_NODE_HOURS={limit:g}: "
                "lower WALLTIME=, NODES= or REPEATS=, raise the limit, or say YES=1"
            )
        click.confirm(f"{cost.likely:.1f} node-hours are more than {limit:g}: submit all the same?", abort=True)

    return approve


def _request(usual: "Request", options: dict[str, Any]) -> "Request":
    """Return the site's `usual` request with what was asked for."""
    from harness.sweep.job_options import Request

    if options["nested"] and options["array"]:
        raise UserError("NESTED=1 and ARRAY=1 exclude each other: choose one")
    shape = "nested" if options["nested"] else "array" if options["array"] else None
    names = {field.name for field in fields(Request)}
    given = {name: value for name, value in options.items() if name in names and value is not None}
    if shape:
        given["shape"] = shape
    return replace(usual, **given)
