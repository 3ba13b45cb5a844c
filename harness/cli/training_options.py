"""The options of a workload and of its layouts, the same for every command that trains."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.base.current_user import UserPath, expanded
from harness.base.errors import UserError, unknown
from harness.base.secret_text import refuse_secrets
from harness.base.setting_names import setting
from harness.cli.common_options import (
    MOST_COUNTS,
    Command,
    field_options,
    option_group,
    parse_counts,
    split_words,
    spread,
    take,
    what,
)
from harness.schema.layout import Layout
from harness.schema.option import HOW
from harness.schema.option import options as schema_options
from harness.schema.presets import PRESETS, SUBJECTS, resolve, script_workload
from harness.schema.workload import Workload

if TYPE_CHECKING:
    from harness.sweep.submission_settings import Submission


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadOptions:
    """What a command line says of a workload: its `settings` by field of `Workload`, None where left open; a script."""

    settings: Mapping[str, Any]
    script: Path | None = None
    script_arguments: str = ""
    script_batch: str = "per-rank"
    allow_argument: tuple[str, ...] = ()


def take_workload(values: dict[str, Any]) -> WorkloadOptions:
    """Take the options of a workload out of the `values` of a command's parameters."""
    values["settings"] = {field.name: values.pop(field.name) for field, _ in schema_options(Workload)}
    return take(WorkloadOptions, values)


_SCRIPT = (
    what("--script", type=UserPath(), help="A TensorFlow script of your own; see `harness run`."),
    what("--script-arguments", default="", help="Its arguments, quoted as in a shell."),
    what(
        "--allow-argument",
        multiple=True,
        metavar="NAME",
        help="An argument of the script that looks like a secret and is none; repeatable.",
    ),
    what(
        "--script-batch",
        default="per-rank",
        metavar="per-rank|global|ROWS",
        help="Its batch: of each rank, or of all. ROWS: of each rank, that of a loop of its own.",
    ),
)


def workload_options(command: Command) -> Command:
    """Add the options of a workload and of a script to a click command; they arrive in its parameter `workload`."""
    from harness import datasets

    registered = {"dataset": "|".join(datasets.dataset_names()), "preset": "|".join(PRESETS)}
    return option_group("workload", take_workload, *field_options(Workload, HOW, registered), *_SCRIPT)(command)


def build_workload(options: WorkloadOptions) -> Workload:
    """Return the workload that the command line's `options` describe; unset ones come from the preset.

    Raises:
        UserError: not exactly one of a data set, a data file and a script is given, or a setting is wrong.
    """
    from harness import datasets
    from harness.datasets.own_file import own_path

    if options.script is not None:
        return _build_script(options, options.script)
    settings = dict(options.settings)
    data_file = str(own_path(expanded(settings["data_file"]))) if settings["data_file"] else None
    settings["preset"] = settings["preset"] or "default"
    subject = SUBJECTS.get(settings["preset"])
    if subject and not (settings["dataset"] or data_file):
        settings["dataset"] = subject.dataset
        settings["model"] = settings["model"] or subject.model
    settings["dataset"] = datasets.choose_dataset(settings["dataset"], data_file)
    settings["model"] = settings["model"] or datasets.dataset_info(settings["dataset"]).default_model
    return resolve(**settings | {"data_file": data_file})


def _build_script(options: WorkloadOptions, script: Path) -> Workload:
    """Return the workload of a user's `script`, which settles everything but the sync policy by itself."""
    settings = options.settings
    batches = ("per-rank", "global")
    batch = options.script_batch
    is_number = batch.isascii() and batch.isdecimal() and int(batch) > 0
    if batch not in batches and not is_number:
        raise unknown("script batch", batch, (*batches, "32"))
    for name, value in settings.items():
        if value is not None and name not in ("sync", "note", "own_rate", "shared_files"):
            raise UserError(
                f"{setting(name)} cannot be combined with {setting('script')}: the script settles it, "
                f"give it what it needs with {setting('script_arguments')}"
            )
    arguments = split_words("script_arguments", options.script_arguments)
    refuse_secrets(arguments, options.allow_argument)
    return script_workload(
        script,
        arguments,
        sync=settings["sync"] or "gradients",
        batch=batch,
        note=settings["note"],
        own_rate=settings["own_rate"],
        shared_files=bool(settings["shared_files"]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutOptions:
    """What a command line says of layouts: lists of counts as they are written, None where left open."""

    nodes: str | None = None
    cores: str | None = None
    gpus: str | None = None
    ranks_per_node: str | None = None
    threads: str | None = None
    zipped: bool = False


_COUNTS = "1..8, 1..64*2 (doublings) or 1,2,4"
layout_options = option_group(
    "layouts",
    partial(take, LayoutOptions),
    spread("--nodes", common=True, help=f"Node counts: {_COUNTS} [default: doublings up to the cores]."),
    spread("--cores", help="Cores over all nodes, instead of nodes."),
    spread("--gpus", help="GPUs over all nodes, one for each rank."),
    spread(
        "--ranks-per-node",
        common=True,
        help="MPI ranks on a node, one count or several [default: on a cluster one for each NUMA domain, else 1].",
    ),
    spread("--threads", common=True, help="Cores, and TensorFlow threads, of a rank [default: 1, or a full node]."),
    spread("--zip", "zipped", is_flag=True, help="Take the lists one by one, not every combination."),
)


_WORKLOAD_FIELDS = [field for field, _ in schema_options(Workload)]
TRAINING_OPTIONS = tuple(field.name for field in (*_WORKLOAD_FIELDS, *fields(WorkloadOptions), *fields(LayoutOptions)))
"""The parameters of a command that are options of a workload, of a script, or of layouts."""


def build_layouts(
    options: LayoutOptions, submission: "Submission", *, oversubscribe: bool = False
) -> tuple[tuple[Layout, ...], tuple[str, ...]]:
    """Return the layouts that the command line's `options` describe, and why other combinations cannot be.

    Raises:
        UserError: a count is wrong, or no combination can be.
    """
    from harness.sweep.plan import Axes, combine, fill_nodes

    counts = {
        name: parse_counts(name, text) if text else ()
        for name, text in (
            ("nodes", options.nodes),
            ("cores", options.cores),
            ("gpus", options.gpus),
            ("ranks_per_node", options.ranks_per_node),
            ("threads", options.threads),
        )
    }
    combinations = 1 if options.zipped else math.prod(len(values) or 1 for values in counts.values())
    if combinations > MOST_COUNTS:
        raise UserError(
            f"these lists have {combinations:,} combinations: ask for at most {MOST_COUNTS:,}, or say "
            f"{setting('zip', True)}"
        )
    limit = None
    on_cluster = submission.scheduler != "local"
    if on_cluster or not counts["nodes"]:
        limit = submission.open(oversubscribe=oversubscribe).limit()
    if not (counts["nodes"] or counts["cores"] or counts["gpus"]):
        if limit is None:
            submission.open(oversubscribe=oversubscribe).check()  # perhaps there is none
            raise UserError(f"{setting('nodes')} is needed: how many nodes there are is not known here")
        most = limit.nodes or 1
        if not on_cluster:  # on one machine its cores stand for nodes
            most = max(1, most // max(1, max(counts["ranks_per_node"] or (1,)) * max(counts["threads"] or (1,))))
        counts["nodes"] = parse_counts("nodes", f"1..{most}*2")
    axes = Axes(**counts, zipped=options.zipped)
    return combine(fill_nodes(axes, limit if on_cluster else None), limit)
