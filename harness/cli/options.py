"""The options of a workload, of its layouts and of the batch system, the same for every command that launches.

And the one way to name a sweep, a launch or a measurement. A name is a folder, what lies in the results under that
name, or the beginning of the name of one sweep there; ``FOLDER/NAME`` looks into FOLDER instead. Where measurements are
asked for, a baseline's name comes first, a launch's folder will do too, and ``SWEEP@COMMIT`` chooses a state of the
code by its first digits. Without a name the sweep that was launched last is meant, not one that was planned since, and
which it is is told. Where launches are to answer a question, `harness.analysis.read_results` has the rule.
"""

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import UserError, unknown
from harness.base.user_path import UserPath, expanded
from harness.cli.common import Command, check_secrets, data_dir_option, field_options, spread, what, where, with_options
from harness.cli.make import split_words
from harness.schema.option import HOW, WHERE
from harness.schema.option import options as schema_options
from harness.schema.presets import PRESETS, resolve, script_workload
from harness.schema.sweep import Layout
from harness.schema.sweep_folder import RUN_FILE, STUDY_FILE, LaunchFolder, SweepFolder, sweep_folders
from harness.schema.workload import Workload
from harness.sweep.schedulers import known_schedulers
from harness.sweep.site import JobRequest

if TYPE_CHECKING:
    from harness.regression.baselines import Measurement
    from harness.sweep.job_cost import NodeHours
    from harness.sweep.submission import Submission


_SCRIPT = (
    what("--script", type=UserPath(), help="A TensorFlow script of your own; see `harness run`."),
    what("--script-arguments", default="", help="Its arguments, quoted as in a shell."),
    what("--script-batch", default="per-rank", metavar="per-rank|global", help="Its batch: of each rank, or of all."),
)


def workload_options(command: Command) -> Command:
    """Add the options of a workload, one for each of its fields, of a script and ``--data-dir`` to a click command."""
    from harness import datasets

    registered = {"dataset": "|".join(datasets.names()), "preset": "|".join(PRESETS)}
    return with_options(*field_options(Workload, HOW, registered), *_SCRIPT, data_dir_option)(command)


def build_workload(options: dict[str, Any]) -> Workload:
    """Return the workload that the command line's `options` describe; unset ones come from the preset.

    Raises:
        UserError: not exactly one of a data set, a data file and a script is given, or a setting is wrong.
    """
    from harness import datasets

    given: dict[str, Any] = {field.name: options.get(field.name) for field, _ in schema_options(Workload)}
    if options.get("script"):
        return _build_script(options, given)
    data_file = str(expanded(given["data_file"]).resolve()) if given["data_file"] else None
    given["dataset"] = datasets.choose(given["dataset"], data_file)
    given["model"] = given["model"] or datasets.info(given["dataset"]).default_model
    given["preset"] = given["preset"] or "default"
    return resolve(**given | {"data_file": data_file})


def _build_script(options: dict[str, Any], given: dict[str, Any]) -> Workload:
    """Return the workload of a user's script, which settles everything but the sync policy by itself."""
    batches = ("per-rank", "global")
    if options["script_batch"] not in batches:
        raise unknown("script batch", options["script_batch"], batches)
    for name, value in given.items():
        if value is not None and name not in ("sync", "note"):
            raise UserError(
                f"--{name.replace('_', '-')} cannot be combined with --script: the script settles it, "
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
layout_options = with_options(
    spread("--nodes", common=True, help=f"Node counts: {_COUNTS} [default: doublings up to the cores]."),
    spread("--cores", help="Cores over all nodes, instead of nodes."),
    spread("--gpus", help="GPUs over all nodes, one for each rank."),
    spread(
        "--ranks-per-node", common=True, help="MPI ranks on a node, one count or several [default: 1, or a full node]."
    ),
    spread("--threads", common=True, default="1", show_default=True, help="Cores, and TensorFlow threads, of a rank."),
    spread("--zip", "zipped", is_flag=True, help="Take the lists one by one, not every combination."),
    spread("--shares", help="Unequal parts of the rows, one per rank: 2:1:1."),
)


_FORMS = "write 1..8 (every count), 1..64*2 (doublings) or 1,2,4 (a list)"
_LIMIT = 1_000_000
MOST_COUNTS = 1_000
"""Counts in one list: many more than anyone plots, and few enough that every combination can be tried."""


def parse_counts(field: str, text: str) -> tuple[int, ...]:
    """Parse `text` into ascending counts without repeats.

    ``1..8`` is 1 2 3 4 5 6 7 8; ``1..64*2`` is 1 2 4 8 16 32 64; parts may be joined by commas.

    Raises:
        UserError: the text is not such a list, a count is below 1, or a range runs backwards.
    """
    counts: set[int] = set()
    for part in text.split(","):
        counts.update(_parse_part(field, text, part.strip()))
    return tuple(sorted(counts))


def _parse_part(field: str, text: str, part: str) -> list[int]:
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+)(?:\*(\d+))?)?", part, flags=re.ASCII)
    if not match:
        raise UserError(f"{field}={text} is not a list of counts: {_FORMS}")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    factor = int(match[3]) if match[3] else None
    if first < 1:
        raise UserError(f"{field}={text} has a count below 1: start at 1")
    if last > _LIMIT:
        raise UserError(f"{field}={text} has a count above {_LIMIT:,}: write a smaller one")
    if last < first:
        raise UserError(f"{field}={text} runs backwards: write {last}..{first}")
    if factor is None:
        if last - first >= MOST_COUNTS:
            raise UserError(f"{field}={text} is {last - first + 1:,} counts: {first}..{last}*2 is the doublings")
        return list(range(first, last + 1))
    if factor < 2:
        raise UserError(f"{field}={text} never grows: the factor after * must be at least 2")
    counts = [first]
    while counts[-1] * factor <= last:
        counts.append(counts[-1] * factor)
    return counts


def build_layouts(options: dict[str, Any], submission: "Submission") -> tuple[tuple[Layout, ...], tuple[str, ...]]:
    """Return the layouts that the command line's `options` describe, and why other combinations cannot be.

    Raises:
        UserError: a count is wrong, or no combination can be.
    """
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
        if limit is None:
            submission.open(oversubscribe=options["oversubscribe"]).check()  # perhaps there is none
            raise UserError("NODES= is needed: how many nodes there are is not known here")
        most = limit.nodes or 1
        if submission.scheduler == "local":  # on one machine its cores stand for nodes
            most = max(1, most // max(1, max(counts["ranks_per_node"] or (1,)) * max(counts["threads"])))
        counts["nodes"] = parse_counts("NODES", f"1..{most}*2")
    shares = parse_shares(options["shares"]) if options["shares"] else None
    return combine(Axes(**counts, zipped=options["zipped"]), limit, shares)


batch_options = with_options(
    where(
        "--scheduler",
        common=True,
        default="auto",
        show_default=True,
        help=f"auto (what is there), {', '.join(known_schedulers())}.",
    ),
    where(
        "--site", common=True, help="Facts of the computing centre: a .toml file, or its name in jobs/sites or here."
    ),
    where(
        "--nested",
        is_flag=True,
        help="One allocation of the largest size for each repeat; the smaller points run inside.",
    ),
    where(
        "--turns/--no-turns",
        common=True,
        default=None,
        help="Train all layouts of a repeat in turns of 50 ms, so that they see the same machine [default: turns on "
        "this machine and with NESTED=1].",
    ),
    where("--array", is_flag=True, help="One job array for each layout, not a job for each launch."),
    *field_options(JobRequest, WHERE),
    where("--template", help="Your own job script template, instead of jobs/templates."),
    where("--max-node-hours", type=float, default=100.0, show_default=True, help="Ask before costing more."),
    where("--yes", is_flag=True, help="Do not ask."),
)


def build_submission(options: dict[str, Any]) -> "tuple[Submission, str]":
    """Return how launches are started, and one sentence that says why there.

    Raises:
        UserError: a setting is wrong, or needs a batch system where there is none.
    """
    from harness.sweep.schedulers import choose, scheduler_class
    from harness.sweep.site import find_site, site_file
    from harness.sweep.submission import Submission

    options = options | {name: _path(options[name]) for name in ("site", "container", "template")}
    site = find_site(options["site"])
    image = options["container"]
    if image and "://" not in image:
        if not Path(image).is_file():
            raise UserError(f"CONTAINER={image} is not a file: name an image, such as image.sif")
        options = options | {"container": str(Path(image).resolve())}
    scheduler, why = choose(options["scheduler"], site)
    if options["nested"] and options["array"]:
        raise UserError("NESTED=1 and ARRAY=1 exclude each other: choose one")
    names = {field.name for field in fields(JobRequest)}
    asked = {name: value for name, value in options.items() if name in names and value not in (None, ())}
    if options["nested"] or options["array"]:
        asked["shape"] = "nested" if options["nested"] else "array"
    request = replace(scheduler_class(scheduler).suitable(site.request), **asked)
    usual = ("jobs", "block") if scheduler == "local" else ("nested", "block")
    no_turns = (
        f"SCHEDULER={scheduler} has none"
        if "block" not in scheduler_class(scheduler).shapes
        else "a TEMPLATE of yours starts launches one by one"
        if options["template"]
        else "REQUEUE and SIGNAL are for launches that follow each other"
        if request.requeue or request.signal_s
        else "launches of jobs of their own follow each other, ask for NESTED=1"
        if request.shape not in usual
        else None
    )
    if options["turns"] and no_turns:
        raise UserError(f"TURNS=1 cannot be: {no_turns}")
    if options["turns"] is not False and no_turns is None:
        request = replace(request, shape="block")
    template = options["template"]
    if template is not None:
        if not Path(template).is_file():
            raise UserError(f"TEMPLATE={template} is not a file: name a Jinja template of yours")
        template = str(Path(template).resolve())
    named = options["site"]
    file = site_file(named) if named else None
    named = str(file) if file else named
    return Submission(scheduler=scheduler, site=site, request=request, template=template, site_file=named), why


def _path(text: str | None) -> str | None:
    """Return the path that a user's `text` means if it begins with ``~``, else the text, which may be a name."""
    return str(expanded(text)) if text and text.startswith("~") else text


def refuse_elsewhere(scheduler: str) -> None:
    """Refuse to train in turns where the `scheduler` that was asked for has the nodes: that is done on this machine.

    Raises:
        UserError: another scheduler than that of this machine was named or found.
    """
    from harness.sweep.schedulers import choose
    from harness.sweep.site import find_site

    chosen, _ = choose(scheduler, find_site(None))
    if chosen != "local":
        raise UserError(
            f"both versions train in turns on this machine, and here SCHEDULER={chosen} has the nodes: say "
            "SCHEDULER=local inside a job of your own"
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


def find_sweeps(name: str | None, results: Path) -> tuple[Path, ...]:
    """Return the folder of the sweep called `name`, else of all whose names begin with it, the newest first.

    Raises:
        UserError: there is none; the nearest name is given.
    """
    if name is None:
        return _known(results)
    exact = _exact(name, results, STUDY_FILE)
    return (exact,) if exact else _beginning(name, results, kept=())


def find_sweep(name: str | None, results: Path) -> Path:
    """Return the folder of the one sweep that `name` means.

    Raises:
        UserError: there is none, or the name is the beginning of several.
    """
    return newest_sweep(results) if name is None else _only(name, find_sweeps(name, results))


def newest_sweep(results: Path) -> Path:
    """Return the sweep that was launched last, else the one that was planned last; say which it is.

    Raises:
        UserError: there is none.
    """
    known = _known(results)
    newest = max(known, key=_launched_at)  # the first of equals: planned last
    if len(known) > 1:
        click.echo(f"harness: no SWEEP is named: of {len(known)}, {newest.name} was launched last", err=True)
    return newest


def find_recorded(name: str | None, results: Path) -> Path:
    """Return the folder of the launch called `name` (a folder, its record, or its name alone), else of the sweep.

    Raises:
        UserError: there is neither.
    """
    if name is None:
        return newest_sweep(results)
    path = Path(name)
    for folder in (path, path.parent if path.name == RUN_FILE else path, results / name):
        if LaunchFolder(folder).is_recorded:
            return folder
    if path.is_file():
        raise UserError(f"'{name}' is not a record: name a launch's folder, its {RUN_FILE}, or a sweep")
    alone = next((sweep / name for sweep in sweep_folders(results) if LaunchFolder(sweep / name).is_recorded), None)
    return alone or find_sweep(name, results)


def find_measurement(name: str | None, *, results: Path, baselines: Path | None) -> "Measurement":
    """Return the measurement called `name`, that of the newest sweep without one. Without `baselines`, of no baseline.

    Raises:
        UserError: there is no such thing, it is not unique, or it holds no valid launch.
    """
    from harness.regression.baselines import find_baseline, measured_in

    if name is None:
        folder = newest_sweep(results)
        return measured_in(folder, str(folder), None)
    if baselines is not None and (baselines / f"{name}.json").is_file():
        return find_baseline(name, baselines).measurement
    place, at, commit = name.partition("@")
    folder_of = _exact(place, results, RUN_FILE) or _exact(place, results, STUDY_FILE)
    kept = () if baselines is None else tuple(file.stem for file in baselines.glob("*.json"))
    return measured_in(folder_of or _only(place, _beginning(place, results, kept)), name, commit if at else None)


def _known(results: Path) -> tuple[Path, ...]:
    known = sweep_folders(results)
    if not known:
        raise UserError(f"no sweep in '{results}': run `harness sweep` first, or name the folder with --results")
    return known


def _exact(name: str, results: Path, file: str) -> Path | None:
    """Return the folder called `name`, here or in the results, that has `file`."""
    found = next((folder for folder in (Path(name), results / name) if name and (folder / file).exists()), None)
    return found.resolve() if found and found.name in ("", "..") else found


def _beginning(name: str, results: Path, kept: Iterable[str]) -> tuple[Path, ...]:
    """Return the sweeps whose names begin with `name`; `kept` are the baselines that an error names too."""
    place, start = Path(name).parent, Path(name).name
    known = {folder.name: folder for folder in sweep_folders(results if place == Path() else place)}
    found = tuple(folder for known_name, folder in known.items() if start and known_name.startswith(start))
    if not found:
        names = [*known, *kept]
        raise unknown("SWEEP", name, names) if names else UserError(f"SWEEP={name}: no sweep in '{results}'")
    return found


def _only(name: str, found: tuple[Path, ...]) -> Path:
    if len(found) > 1:
        names = ", ".join(sorted(folder.name for folder in found))
        raise UserError(f"SWEEP={name} is the beginning of {len(found)} sweeps: {names}; write more of the name")
    return found[0]


def _launched_at(folder: Path) -> float:
    """Return when a launch of the sweep in `folder` last began or ended, in seconds since 1970; 0 for none."""

    times = [0.0]
    files = SweepFolder(folder)
    records = (LaunchFolder(launch).record for launch in files.records())
    for path in (*records, *files.failures.glob("*.json"), files.running):
        with contextlib.suppress(FileNotFoundError):  # there is none, or a sweep that runs now has just removed it
            times.append(path.stat().st_mtime)
    return max(times)
