"""The options of a workload, of its layouts and of the batch system, the same for every command that launches."""

import math
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from harness.base.errors import UserError, unknown
from harness.cli.common import Command, check_secrets, data_dir_option, field_options, split_words, with_options
from harness.schema.option import options as schema_options
from harness.schema.presets import PRESETS, resolve, script_workload
from harness.schema.workload import Workload
from harness.sweep.schedulers import known_schedulers

if TYPE_CHECKING:
    from harness.regression.sequential_test import MoreLaunches
    from harness.schema.layout import Layout
    from harness.schema.measurement import Measurement
    from harness.sweep.job_options import JobRequest
    from harness.sweep.jobs import NodeHours
    from harness.sweep.submission import Submission


_SCRIPT = (
    click.option(
        "--script", type=click.Path(path_type=Path), help="A TensorFlow script of your own; see `harness run`."
    ),
    click.option("--script-arguments", default="", help="Its arguments, quoted as in a shell."),
    click.option("--script-batch", default="per-rank", metavar="per-rank|global", help="What its batch size is of."),
)


def workload_options(command: Command) -> Command:
    """Add the options of a workload, one for each of its fields, of a script and ``--data-dir`` to a click command."""
    from harness import datasets

    registered = {"dataset": "|".join(datasets.names()), "preset": "|".join(PRESETS)}
    return with_options([*field_options(Workload, registered), *_SCRIPT, data_dir_option])(command)


def build_workload(options: dict[str, Any]) -> Workload:
    """Return the workload that the command line's `options` describe; unset ones come from the preset.

    Raises:
        UserError: not exactly one of a data set, a data file and a script is given, or a setting is wrong.
    """
    from harness import datasets

    given: dict[str, Any] = {field.name: options.get(field.name) for field, _ in schema_options(Workload)}
    if options.get("script"):
        return _build_script(options, given)
    data_file = given["data_file"]
    given["dataset"] = datasets.choose(given["dataset"], data_file)
    given["model"] = given["model"] or datasets.info(given["dataset"]).default_model
    given["preset"] = given["preset"] or "default"
    return resolve(**given | {"data_file": str(Path(data_file).resolve()) if data_file else None})


def _build_script(options: dict[str, Any], given: dict[str, Any]) -> Workload:
    """Return the workload of a user's script, which settles everything but the sync policy by itself."""
    batches = ("per-rank", "global")
    if options["script_batch"] not in batches:
        raise unknown("script batch", options["script_batch"], batches)
    for name, value in given.items():
        if value is not None and name not in ("sync", "note"):
            raise UserError(
                f"--{name.replace('_', '-')} does not go with --script: the script settles it, "
                "give it what it needs with --script-arguments"
            )
    arguments = split_words("SCRIPT_ARGUMENTS", options["script_arguments"])
    check_secrets(arguments)
    return script_workload(
        options["script"],
        arguments,
        sync=given["sync"] or "gradients",
        batch=options["script_batch"],
        note=given["note"],
    )


_COUNTS = "1..8, 1..64*2 (doublings) or 1,2,4"
_LAYOUT_OPTIONS = (
    click.option("--nodes", help=f"Node counts: {_COUNTS} [default: doublings up to the cores]."),
    click.option("--cores", help="Cores over all nodes, instead of nodes."),
    click.option("--gpus", help="GPUs over all nodes, one for each rank."),
    click.option("--ranks-per-node", help="MPI ranks on a node, one count or several [default: 1, or a full node]."),
    click.option("--threads", default="1", show_default=True, help="Cores, and TensorFlow threads, of a rank."),
    click.option("--zip", "zipped", is_flag=True, help="Take the lists one by one instead of every combination."),
    click.option("--shares", help="Unequal parts of the rows, one per rank: 2:1:1."),
)


def layout_options(command: Command) -> Command:
    """Add the options of layouts to a click command."""
    for option in reversed(_LAYOUT_OPTIONS):
        command = option(command)
    return command


def build_layouts(options: dict[str, Any], submission: "Submission") -> "tuple[tuple[Layout, ...], tuple[str, ...]]":
    """Return the layouts that the command line's `options` describe, and why other combinations cannot be.

    Raises:
        UserError: a count is wrong, or no combination can be.
    """
    from harness.schema.layout import MOST_COUNTS, parse_counts
    from harness.sweep.plan import Axes, combine, parse_shares

    counts = {
        name: parse_counts(name.upper(), options[name]) if options[name] else ()
        for name in ("nodes", "cores", "gpus", "ranks_per_node", "threads")
    }
    combinations = 1 if options["zipped"] else math.prod(len(each) or 1 for each in counts.values())
    if combinations > MOST_COUNTS:
        raise UserError(
            f"these lists have {combinations:,} combinations: ask for at most {MOST_COUNTS:,}, or say ZIP=1"
        )
    limit = None
    if not counts["nodes"]:
        limit = submission.open(oversubscribe=options["oversubscribe"]).limit()
    if not (counts["nodes"] or counts["cores"] or counts["gpus"]):
        per_node = max(counts["ranks_per_node"] or (1,)) * max(counts["threads"])
        counts["nodes"] = parse_counts("NODES", _default_nodes(per_node, submission.scheduler, limit))
    shares = parse_shares(options["shares"]) if options["shares"] else None
    return combine(Axes(**counts, zipped=options["zipped"]), limit, shares)


def _default_nodes(cores_per_node: int, scheduler: str, limit: Any) -> str:
    """Return the doublings of nodes that there are; on one machine its cores stand for them."""
    if limit is None:
        raise UserError("NODES= is needed: how many nodes there are is not known here")
    nodes = limit.nodes or 1
    return f"1..{max(1, nodes // max(1, cores_per_node)) if scheduler == 'local' else nodes}*2"


Option = Callable[[Any], Any]

_BATCH_OPTIONS: tuple[Option, ...] = (
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
    click.option(
        "--walltime", help="Time limit of a launch, H:MM:SS, or by nodes: 1:00:00,8=0:20:00 [default: 1:00:00]."
    ),
    click.option("--memory", help="Memory per node, such as 16G."),
    click.option("--exclusive/--share-nodes", default=None, help="Nodes for ourselves [default: exclusive]."),
    click.option("--mail", help="Address to write to when a job ends."),
    click.option("--requeue/--no-requeue", default=None, help="Let the scheduler start interrupted jobs again."),
    click.option("--signal", "signal_s", type=int, help="End the ranks so many seconds before the limit (Slurm)."),
    click.option("--retries", type=int, help="Try a launch that fails again, so many times [default: 0]."),
    click.option("--after", help="Job that must have succeeded first."),
    click.option("--extra", multiple=True, help="Any other options of a directive, as the scheduler reads them."),
    click.option("--container", help="Apptainer or Singularity image in which the ranks run."),
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
    for option in reversed(_BATCH_OPTIONS):
        command = option(command)
    return command


def cost_options(command: Command) -> Command:
    """Add the options that limit what a command may cost to a click command."""
    for option in reversed(_COST_OPTIONS):
        command = option(command)
    return command


def refuse_batch(fix: str) -> None:
    """Refuse options of the batch system that were given to the command that runs now, which launches nothing.

    Raises:
        UserError: naming the option and the `fix`.
    """
    context = click.get_current_context()
    for option in click.command("batch")(batch_options(lambda: None)).params:
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            raise UserError(f"{option.opts[0]} says how to launch, and nothing is launched: {fix}")


def build_submission(options: dict[str, Any]) -> "tuple[Submission, str]":
    """Return how launches are started, and one sentence that says why there.

    Raises:
        UserError: a setting is wrong, or needs a batch system where there is none.
    """
    from harness.sweep.schedulers import choose, scheduler_class
    from harness.sweep.site import find_site
    from harness.sweep.submission import Submission

    site = find_site(options["site"])
    image = options["container"]
    if image and "://" not in image:
        if not Path(image).is_file():
            raise UserError(f"CONTAINER={image} is no file: name an image, such as image.sif")
        options = options | {"container": str(Path(image).resolve())}
    scheduler, why = choose(options["scheduler"], site)
    request = _request(scheduler_class(scheduler).suitable(site.request), options)
    template = options["template"]
    if template is not None:
        if not Path(template).is_file():
            raise UserError(f"TEMPLATE={template} is no file: name a Jinja template of yours")
        template = str(Path(template).resolve())
    return Submission(scheduler=scheduler, site=site, request=request, template=template), why


def duet_elsewhere(scheduler: str) -> str:
    """Return why there is no duet where `scheduler` has the nodes: its pairs are launched by this command itself."""
    return (
        f"its launches are made on this machine, and here SCHEDULER={scheduler} makes them (inside a job of your own "
        "SCHEDULER=local allows it)"
    )


def approval(options: dict[str, Any]) -> "Callable[[NodeHours], None]":
    """Return what asks the user before a sweep that costs more than ``--max-node-hours``."""

    def approve(cost: "NodeHours") -> None:
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


def more_launches(
    known: "Measurement", options: dict[str, Any], *, results: Path, data_dir: Path | None, budget_s: float
) -> "MoreLaunches":
    """Return what launches `known`'s study again, where the command line's `options` say; say where and why."""
    from harness.regression.sequential_test import MoreLaunches, study_of

    submission, why = build_submission(options)
    if submission.scheduler != "local":
        click.echo(why)
    return MoreLaunches(
        study_of(known),
        results=results,
        data_dir=data_dir,
        budget_s=budget_s,
        submission=submission,
        approve=approval(options),
    )


def _request(usual: "JobRequest", options: dict[str, Any]) -> "JobRequest":
    """Return the site's `usual` request with what was asked for."""
    from harness.sweep.job_options import JobRequest

    if options["nested"] and options["array"]:
        raise UserError("NESTED=1 and ARRAY=1 exclude each other: choose one")
    shape = "nested" if options["nested"] else "array" if options["array"] else None
    names = {field.name for field in fields(JobRequest)}
    given = {name: value for name, value in options.items() if name in names and value not in (None, ())}
    if shape:
        given["shape"] = shape
    return replace(usual, **given)
