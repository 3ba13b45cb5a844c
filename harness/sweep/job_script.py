"""The files of a job: the points for the ranks, the script from its template, the logs."""

import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import cache_folder, resource, write_atomic
from harness.base.processes import thread_limits
from harness.comm.mpi_library import mpi_choice, mpi_version
from harness.schema.record import encode
from harness.schema.sweep import LOGS, ROUNDS, Layout, Point, digest
from harness.schema.workload import IMAGENET, survives
from harness.sweep.block import Block, RankSet
from harness.sweep.launch_command import LaunchCommand, surviving
from harness.sweep.plan import time_left
from harness.sweep.schedulers import Job, Scheduler
from harness.sweep.site import JobRequest, Partition, Site, seconds, walltime


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The launches of one job, in launch order. `shape` is one of `site.SHAPES`."""

    shape: str
    points: tuple[Point, ...]

    @property
    def layout(self) -> Layout:
        """The largest of the layouts: what the job must be given."""
        return max((point.layout for point in self.points), key=lambda layout: (layout.nodes, layout.ranks))


def group_points(points: Iterable[Point], shape: str) -> tuple[Group, ...]:
    """Return the jobs for `points`, in the order of their first launches.

    An array's tasks are the same, so each layout has its own; a single task is a plain job. Launches that share
    a nested allocation have the same ranks per node, threads and GPUs, so that every smaller one runs on the
    first nodes of the larger ones.
    """
    together: dict[object, list[Point]] = {}
    for point in points:
        together.setdefault(_shared(point, shape), []).append(point)
    return tuple(
        Group(shape="jobs" if len(group) == 1 and shape == "array" else shape, points=tuple(group))
        for group in together.values()
    )


def _shared(point: Point, shape: str) -> object:
    layout = point.layout
    if shape == "array":
        return layout
    if shape == "nested":
        return (layout.ranks_per_node, layout.threads, layout.gpus_per_rank)
    return point


def takes_turns(point: Point) -> bool:
    """Tell whether ranks can wait for a turn: not those that outlive others, decode ahead, or share a GPU or a core."""
    own = point.workload
    decodes = own.dataset == IMAGENET and (
        own.input == "files" or (own.input == "auto" and not point.data_id.startswith("synthetic"))
    )
    return not (survives(own) or decodes or point.layout.gpus_per_rank or point.oversubscribe)


def blocks(
    points: Sequence[Point], all_points: Sequence[Point], peak: int, free: float, *, nodes: bool = False
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Return the jobs for the missing `points`: a block for each repeat, in turns, and what to say of them.

    `all_points` are the sweep's. A block has the layout with the fewest ranks, which the others are compared with,
    even where that launch is not missing. A rank takes `peak` bytes; where all of a repeat do not
    fit into the `free` bytes of this machine, it has several blocks, each with the base. What cannot wait
    for a turn is launched alone: ranks that outlive others, images that are decoded ahead of the steps, GPUs whose
    memory is taken whole, more ranks than cores.

    With `nodes` a block is a job of a batch system, whose launches share its first node: those of a block have the same
    ranks per node, threads and GPUs, and what cannot wait for a turn has an allocation where they follow each other.
    """

    def taken(point: Point) -> int:
        return (point.layout.ranks_per_node if nodes else point.layout.ranks) * peak

    def kind(point: Point) -> tuple[object, ...]:
        return (point.repeat, _shared(point, "nested")) if nodes else (point.repeat,)

    alone = [point for point in points if not takes_turns(point)]
    groups, notes = list(group_points(alone, "nested")) if nodes else [], dict[str, None]()
    for one in dict.fromkeys(map(kind, points)):
        if not nodes:
            groups += group_points([point for point in alone if kind(point) == one], "jobs")
        together = [point for point in points if kind(point) == one and takes_turns(point)]
        base = min(
            (point for point in all_points if kind(point) == one and takes_turns(point)),
            key=lambda point: (point.layout.ranks, point.layout.nodes, point.layout.threads),
            default=None,
        )
        others = [point for point in together if point != base]
        if not others or base is None:
            groups += [Group(shape="jobs", points=(point,)) for point in together]
            continue
        while others:
            block, room = [base, others.pop(0)], free - taken(base)
            room -= taken(block[1])
            while others and taken(others[0]) <= room:
                block.append(others.pop(0))
                room -= taken(block[-1])
            if room < 0 or others:
                need = sum(map(taken, block)) / 2**30
                notes[f"in turns: {len(block)} layouts at a time, which need about {need:.1f} GB of memory"] = None
            groups.append(Group(shape="block", points=tuple(block)))
    return tuple(groups), tuple(notes)


def time_limit(group: Group, request: JobRequest, limit: Partition | None) -> str:
    """Return the time limit of a job: its launches one after the other, within what the partition allows.

    Where that is not enough, the rest is missing and runs with the next command.
    """
    total = sum(request.limit_s(point.layout.nodes) for point in group.points)
    if group.shape not in ("nested", "block"):
        return walltime(total / len(group.points))  # an array's launches are the same
    return walltime(min(total, seconds(limit.walltime)) if limit is not None and limit.walltime else total)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHours:
    """Node-hours: `expected` by the launches that have finished (None before the first), `limit` by time limits.

    `enough` is a limit that the longest launch so far keeps three times over, if that is far below what is asked for.
    """

    expected: float | None
    limit: float
    jobs: int
    finished: int
    enough: str = ""

    def __str__(self) -> str:
        plural = "" if self.jobs == 1 else "s"
        limit = f"at most {self.limit:.2f} node-hours by the time limits of {self.jobs} job{plural}"
        if self.expected is None:
            return f"cost: {limit}"
        limit += f"; judging by these, WALLTIME={self.enough} is enough, and starts sooner" if self.enough else ""
        return f"cost: about {self.expected:.2f} node-hours by {self.finished} finished launches, {limit}"

    @property
    def likely(self) -> float:
        """The node-hours to ask a confirmation for: what is expected, else the limit."""
        return self.limit if self.expected is None else self.expected


def estimate(
    groups: Sequence[Group],
    request: JobRequest,
    partition: Partition | None,
    durations: Mapping[Layout, Sequence[float]],
) -> NodeHours:
    """Return the cost of `groups`; `durations` holds the seconds of finished launches by layout."""
    limit, expected, jobs = 0.0, 0.0, 0
    for group in groups:
        count = len(group.points) if group.shape == "array" else 1
        jobs += count
        limit += group.layout.nodes * seconds(time_limit(group, request, partition)) * count / 3600
        for point in group.points:
            took = time_left([point], durations) or 0.0
            expected += (group.layout if group.shape in ("nested", "block") else point.layout).nodes * took / 3600
    finished = sum(len(values) for values in durations.values())
    enough = 60 * math.ceil(3 * max(map(max, durations.values()), default=0.0) / 60)
    shorter = finished and all(2 * enough < request.limit_s(group.layout.nodes) for group in groups)
    return NodeHours(
        expected=expected if finished else None,
        limit=limit,
        jobs=jobs,
        finished=finished,
        enough=walltime(enough) if shorter else "",
    )


def remarks(layouts: Sequence[Layout], request: JobRequest, limit: Partition | None, site: Site) -> tuple[str, ...]:
    """Return what whoever submits `layouts` should know: the MPI library that will run, cores that nobody uses."""
    mpi = mpi_version() or "none that is found here"
    said = [f"MPI: {'that of the container' if request.container else mpi}"]
    modules = [module for module in site.modules if re.search("mpi|mvapich", module.lower())]
    if modules and mpi_choice() == "wheel" and not request.container:
        said[0] += f", and not that of the site's module {modules[0]}: MPI=system takes it"
    there = limit.cores_per_node if limit else None
    used = max(layout.ranks_per_node * layout.threads for layout in layouts)
    if request.exclusive and there and used < there:
        said.append(
            f"nodes of {there} cores for this sweep alone, of which it uses {used}: RANKS_PER_NODE= or THREADS= use "
            "more, SHARE_NODES=1 leaves them to others, whose work then disturbs the times"
        )
    return tuple(said)


TEMPLATES = "jobs/templates"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobLaunch:
    """One point of a job. `name` is its folder's name; `launcher` starts its ranks."""

    name: str
    layout: Layout
    launcher: LaunchCommand
    point_file: str
    record: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JobScript:
    """Everything a template may use, users' own ones too.

    `name` is the job's name in the queue. `layout` is that of the largest launch. `request` and `site` hold the
    directives, modules and set-up lines. `jobs` and `logs` are folders; `environment` is exported, a value of
    None is unset; `binds` are the folders that a container needs. Paths are absolute.
    """

    name: str
    title: str
    version: str
    script_name: str
    workdir: str
    layout: Layout
    launches: tuple[JobLaunch, ...]
    environment: Mapping[str, str | None]
    python: str
    jobs: str
    logs: str
    data_dir: str | None
    binds: tuple[str, ...] = ()
    shape: str = "jobs"
    walltime: str = ""
    request: JobRequest = field(default_factory=JobRequest)
    site: Site = field(default_factory=Site)


def render(template: str, script: JobScript, path: Callable[[str], str] = str) -> str:
    """Return the job script that `template` makes of `script`.

    `template` is a file of ``jobs/templates`` such as ``local.sh.j2``, or the path of a user's own, which may
    extend those. `path` writes a path as the scheduler's directives take it.

    Raises:
        UserError: the template is missing, has an error or uses a variable that `JobScript` does not have.
    """
    import jinja2

    own = Path(template) if "/" in template or not (resource(TEMPLATES) / template).exists() else None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*([own.parent] if own else []), resource(TEMPLATES)]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell, not HTML: every value passes through `quote`
    )
    environment.filters["quote"] = shlex.quote
    environment.filters["words"] = _words
    environment.filters["path"] = path
    variables = {name: getattr(script, name) for name in script.__slots__}
    try:
        return environment.get_template(own.name if own else template).render(variables)
    except jinja2.TemplateNotFound as error:
        raise UserError(f"TEMPLATE={template} cannot be found: {error.name} is missing") from error
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"TEMPLATE={template} has an error in line {error.lineno}: {error.message}") from error
    except jinja2.UndefinedError as error:
        raise UserError(f"TEMPLATE={template} uses a variable that does not exist: {error.message}") from error


def check_directives(script: str, scheduler: Scheduler, template: str) -> None:
    """Refuse a script with directives that the scheduler would ignore or misread.

    Directives after the first command are ignored by sbatch and by qsub; CRLF line ends are part of a directive's
    value.

    Raises:
        UserError: naming the template, the line and the fix.
    """
    if not scheduler.directive:
        return
    if "\r" in script:
        raise UserError(f"TEMPLATE={template} has CRLF line ends: save it with LF ones")
    commands = False
    for number, line in enumerate(script.splitlines(), start=1):
        if line.startswith(scheduler.directive):
            wrong = scheduler.refuse_line(line)
            if commands:
                wrong = f"stands after the first command, where {scheduler.name} ignores it: move it up"
            if wrong:
                raise UserError(f"TEMPLATE={template}: line {number} of the script, '{line}', {wrong}")
        elif line.strip() and not line.startswith("#"):
            commands = True


def _words(words: tuple[str, ...]) -> str:
    """Return words quoted for the shell; a leading ``$jobs/`` stays the script's own variable."""
    return " ".join(
        f'"$jobs"/{shlex.quote(word.removeprefix("$jobs/"))}' if word.startswith("$jobs/") else shlex.quote(word)
        for word in words
    )


JOBS = "jobs"  # results/<sweep>/jobs/<point folder>.{json,sh,exit}


def write_group(
    group: Group, scheduler: Scheduler, *, folder: Path, data_dir: Path | None, template: str | None = None
) -> Job:
    """Write the point files and the script of one job under the sweep's `folder` and return the job.

    Raises:
        UserError: the folder cannot be written to, or the user's `template` is wrong.
    """
    folder = folder.resolve()
    first, layout, name = group.points[0], group.layout, queue_name(folder, group)
    path = folder / JOBS / (f"{first.folder}.sh" if group.shape == "jobs" else f"{group.shape}-{name}.sh")
    launches = tuple(
        JobLaunch(
            name=point.folder,
            layout=point.layout,
            launcher=surviving(scheduler.launcher(point.layout), point),
            point_file=str(folder / JOBS / f"{point.folder}.json"),
            record=str(folder / point.folder),
        )
        for point in group.points
    )
    title = f"{first.workload.name}, {first.layout}, repeat {first.repeat}"
    if len(group.points) > 1:
        title = f"{first.workload.name}, {len(group.points)} launches, {group.shape}, up to {layout}"
    data = str(data_dir.resolve()) if data_dir is not None else None
    # A container has an MPI library of its own, wherever that is.
    outside = ("MPI4PY_LIBMPI", "MPI4PY_MPIABI") if scheduler.request.container else ()
    script = JobScript(
        name=name,
        title=" ".join(title.split()),
        version=__version__,
        script_name=path.name,
        workdir=str(Path.cwd()),
        layout=layout,
        launches=launches,
        environment={**scheduler.environment(layout), **dict.fromkeys(outside), **dict(first.settings)},
        python=sys.executable,
        jobs=str(folder / JOBS),
        logs=str(folder / LOGS),
        data_dir=data,
        binds=_binds(folder, data_dir, first.workload.data_file),
        shape=group.shape,
        walltime=time_limit(group, scheduler.request, scheduler.limit()),
        request=scheduler.request,
        site=scheduler.site,
    )
    text = render(template or scheduler.template, script, scheduler.path)
    check_directives(text, scheduler, template or scheduler.template)
    for point in group.points:  # what each launch reads and runs; what an earlier attempt left is emptied
        write_atomic(folder / JOBS / f"{point.folder}.json", encode(point))
        write_atomic(folder / LOGS / f"{point.folder}.log", "")
        exit_file(folder, point).unlink(missing_ok=True)
    for helper in scheduler.helpers(layout):
        write_atomic(folder / JOBS / helper, (resource(TEMPLATES) / helper).read_text())
        (folder / JOBS / helper).chmod(0o755)
    write_atomic(path, text)
    if group.shape == "block":
        stem = f"{path.stem}-{datetime.now(UTC):%Y%m%dT%H%M%S}"  # not that of the same launches at another time
        made = (rank_set(one, point, folder, data) for point, one in zip(group.points, launches, strict=True))
        exits = (replace(one, exit_file=str(folder / JOBS / f"{one.name}.exit")) for one in made)
        block = Block(name=stem, sets=tuple(exits), rounds=str(folder / ROUNDS / f"{stem}.parquet"))
        if scheduler.survives_client:  # a job learns of its nodes when it has them
            sets = (replace(one, words=(), words_file=str(folder / JOBS / f"{one.name}.words")) for one in block.sets)
            block = replace(block, sets=tuple(sets), limit_s=scheduler.request.limit_s(layout.nodes))
        write_atomic(path.with_suffix(".json"), encode(block))
        return Job(name=name, script=path, log=folder / LOGS / f"{name}.log")
    tasks = len(group.points) if group.shape == "array" else 0
    return Job(name=name, script=path, log=folder / LOGS / f"{first.folder}.log", tasks=tasks)


def rank_set(launch: JobLaunch, point: Point, folder: Path, data_dir: str | None) -> RankSet:
    """Return the set of ranks of a `launch` that trains `point` in a block, and logs below `folder`."""
    given = ("--data-dir", data_dir) if data_dir is not None else ()
    words = (*launch.launcher.words, sys.executable, "-m", "harness", "train", *given)
    return RankSet(
        name=launch.name,
        words=(*words, "--point", launch.point_file, "--record", launch.record),
        log=str(folder / LOGS / f"{point.folder}.log"),
        changes={
            "HARNESS_LAUNCHER": " ".join(launch.launcher.words),
            **thread_limits(launch.layout.threads),
            **dict(point.settings),
        },
    )


def _binds(folder: Path, data_dir: Path | None, data_file: str | None) -> tuple[str, ...]:
    """Return the folders that ranks read and write, each once."""
    folders = [Path.cwd(), folder, cache_folder()]
    if data := data_dir or os.environ.get("HARNESS_DATA_DIR"):
        folders.append(Path(data))
    if data_file:
        folders.append(Path(data_file).parent)
    return tuple(dict.fromkeys(str(path.resolve()) for path in folders))


def queue_name(folder: Path, group: Group) -> str:
    """Return the job's name in the queue: the same for the same launches of the same folder, at most 14 characters.

    It begins with that of the data set or script, by which people know it.
    """
    known = re.sub(r"[^a-z0-9]|^[0-9]+", "", group.points[0].workload.name.lower())[:5] or "h"
    return f"{known}-{digest((str(folder.resolve()), [point.key for point in group.points]))[:8]}"


def exit_file(folder: Path, point: Point) -> Path:
    """Return the file to which a batch job writes the exit code of `point`'s ranks."""
    return folder / JOBS / f"{point.folder}.exit"
