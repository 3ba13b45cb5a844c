"""The files of a job: the points for the ranks, the script from its template, the turn block, the logs."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import cache_folder, resource, write_atomic
from harness.base.processes import thread_limits
from harness.base.removal import remove_file
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import encode
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.block_estimate import PastLaunches, past_launches
from harness.sweep.job_cost import time_limit
from harness.sweep.job_plan import JobPlan, queue_name
from harness.sweep.launch_command import LaunchCommand, surviving
from harness.sweep.schedulers import Job, Scheduler
from harness.sweep.site import JobRequest, Site, walltime
from harness.sweep.turn_block import BlockSeries, LaunchSpec, TurnBlock

# A job script from its template: what templates may use, and directives that a scheduler would misread.

TEMPLATES = "jobs/templates"
_ENDING_S = 30.0  # of a job's time limit: what its start and its last block's end take beside the blocks


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

    `name` is the job's name in the queue. `launches` are those of one job, of blocks one of each layout. `layout` is
    that of the largest launch. `node_check` are the words that try a node, for at most `node_check_s` seconds.
    `request` and `site` hold the directives, modules and set-up lines. `jobs` and `logs` are folders; `environment` is
    exported, a value of None is unset; `binds` are the folders that a container needs. Paths are absolute.
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
    node_check: tuple[str, ...] = ()
    node_check_s: int = 120
    walltime: str = ""
    request: JobRequest = field(default_factory=JobRequest)
    site: Site = field(default_factory=Site)


def render_script(template: str, script: JobScript, path: Callable[[str], str] = str) -> str:
    """Return the job script that `template` makes of `script`.

    `template` is a file of ``jobs/templates`` such as ``local.sh.j2``, or the path of a user's own, which may
    extend those. `path` writes a path as the scheduler's directives take it.

    Raises:
        UserError: the template is missing, has an error or uses a variable that `JobScript` does not have.
    """
    import jinja2

    folders = [resource(TEMPLATES)]
    name = template
    if "/" in template or not (resource(TEMPLATES) / template).exists():  # a user's own
        folders.insert(0, Path(template).parent)
        name = Path(template).name
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
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
        return environment.get_template(name).render(variables)
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


def write_job(
    plan: JobPlan, scheduler: Scheduler, *, folder: Path, data_dir: Path | None, template: str | None = None
) -> Job:
    """Write the point files and the script of one job under the sweep's `folder` and return the job.

    Raises:
        UserError: the folder cannot be written to, or the user's `template` is wrong.
    """
    files = SweepFolder(folder.resolve())
    name = queue_name(files.path, plan)
    first = plan.points[0].folder
    path = files.script(first if plan.shape == "jobs" else f"{plan.shape}-{name}")
    launches = tuple(_job_launch(point, scheduler, files) for point in _named_in_script(plan, scheduler))
    data_folder = str(data_dir.resolve()) if data_dir is not None else None
    request = scheduler.request
    past = past_launches(files, request.partition) if plan.is_shared else PastLaunches()
    job = _JobFiles(
        plan=plan,
        scheduler=scheduler,
        files=files,
        path=path,
        launches=launches,
        limit_s=time_limit(plan, request, scheduler.limit(), past),
        data_dir=data_folder,
    )
    text = render_script(template or scheduler.template, job.script(), scheduler.path)
    check_directives(text, scheduler, template or scheduler.template)
    for point in plan.launches:
        write_atomic(files.point(point.folder), encode(point))
        write_atomic(files.log(point.folder), "")
        for left in (files.exit_code(point.folder), files.words(point.folder), files.lost_nodes(point.folder)):
            remove_file(left)
    for helper in scheduler.helpers(plan.layout):
        program = files.jobs / helper
        write_atomic(program, (resource(TEMPLATES) / helper).read_text())
        program.chmod(0o755)
    write_atomic(path, text)
    if plan.shape == "block":
        write_atomic(path.with_suffix(".json"), encode(job.series()))
        remove_file(files.blocks_made(name))
        return Job(name=name, script=path, log=files.log(name))
    return Job(name=name, script=path, log=files.log(first), tasks=plan.jobs if plan.shape == "array" else 0)


def _named_in_script(plan: JobPlan, scheduler: Scheduler) -> tuple[Point, ...]:
    """Return the launches that a job's script names: of the blocks of a batch system the first of each layout."""
    if plan.shape != "block" or not scheduler.survives_client:
        return plan.points
    first_of: dict[Layout, Point] = {}
    for point in plan.points:
        first_of.setdefault(point.layout, point)
    return tuple(first_of.values())


def _job_launch(point: Point, scheduler: Scheduler, files: SweepFolder) -> JobLaunch:
    return JobLaunch(
        name=point.folder,
        layout=point.layout,
        launcher=surviving(scheduler.launcher(point.layout), point),
        point_file=str(files.point(point.folder)),
        record=str(files.launch(point.folder).path),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _JobFiles:
    """What is written for a job: its script at `path`, and the turn block beside it; `limit_s` is its time limit."""

    plan: JobPlan
    scheduler: Scheduler
    files: SweepFolder
    path: Path
    launches: tuple[JobLaunch, ...]
    limit_s: float
    data_dir: str | None

    def script(self) -> JobScript:
        """Return what the template of the script at `path` may use."""
        first = self.plan.points[0]
        variables = dict(self.scheduler.environment(self.plan.layout))
        if self.scheduler.request.container:  # it has an MPI library of its own, wherever that is
            variables |= {"MPI4PY_LIBMPI": None, "MPI4PY_MPIABI": None}
        environment = variables | dict(self.plan.points[0].settings)
        workload = first.workload
        # The folders that ranks read and write, each once.
        folders = [Path.cwd(), self.files.path, cache_folder()]
        if data := self.data_dir or os.environ.get("HARNESS_DATA_DIR"):
            folders.append(Path(data))
        if workload.own_file:
            folders += [workload.own_file.parent, workload.own_file.resolve().parent]  # it may be a link
        if workload.script:
            folders.append(workload.script.path.parent)
        binds = tuple(dict.fromkeys(str(path.resolve()) for path in folders))
        return JobScript(
            name=queue_name(self.files.path, self.plan),
            title=_title(self.plan),
            version=__version__,
            script_name=self.path.name,
            workdir=str(Path.cwd()),
            layout=self.plan.layout,
            launches=self.launches,
            environment=environment,
            python=sys.executable,
            jobs=str(self.files.jobs),
            logs=str(self.files.logs),
            data_dir=self.data_dir,
            binds=binds,
            shape=self.plan.shape,
            node_check=self.scheduler.node_check(self.plan.layout),
            walltime=walltime(self.limit_s),
            request=self.scheduler.request,
            site=self.scheduler.site,
        )

    def series(self) -> BlockSeries:
        """Return the blocks of the job's launches."""
        begun = f"{datetime.now(UTC):%Y%m%dT%H%M%S}"  # not the name of the same launches at another time
        blocks: list[TurnBlock] = []
        for number, points in enumerate((*self.plan.needed_blocks, *self.plan.extra_blocks)):
            name = f"{self.path.stem}-{begun}" + (f"-{number + 1}" if number else "")
            blocks.append(self._turn_block(name, points))
        return BlockSeries(
            blocks=tuple(blocks),
            least=len(self.plan.needed_blocks),
            of_repeat=self._blocks_of_last_repeat(),
            folder=str(self.files.path),
            limit_s=self.limit_s - _ENDING_S if self.scheduler.survives_client else 0.0,
            nodes=self.plan.layout.nodes,
            partition=self.scheduler.request.partition,
            progress_file=str(self.files.blocks_made(queue_name(self.files.path, self.plan))),
        )

    def _blocks_of_last_repeat(self) -> int:
        """Return how many blocks a repeat has; extra launches repeat the last one."""
        last = self.plan.needed_blocks[-1][0].repeat
        return sum(block[0].repeat == last for block in self.plan.needed_blocks)

    def _turn_block(self, name: str, points: Sequence[Point]) -> TurnBlock:
        """Return the block called `name` of the launches of `points`."""
        by_layout = {launch.layout: launch for launch in self.launches}
        batch = self.scheduler.survives_client
        specs: list[LaunchSpec] = []
        for point in points:
            launch = _job_launch(point, self.scheduler, self.files)
            spec = launch_spec(launch, point, self.files.path, self.data_dir)
            spec = replace(spec, exit_file=str(self.files.exit_code(launch.name)))
            if batch:  # a job learns of its nodes when it has them
                words_file = str(self.files.words(by_layout[point.layout].name))
                spec = replace(spec, words=_own_words(launch), words_file=words_file)
            specs.append(spec)
        return TurnBlock(
            name=name,
            launches=tuple(specs),
            rounds=str(self.files.block_turns(name)),
            limit_s=self.limit_s if batch else 0.0,
            on_gpus=any(point.layout.gpus_per_rank for point in points),
        )


def _title(plan: JobPlan) -> str:
    """Return the script's first line, for people."""
    first = plan.points[0]
    title = f"{first.workload.name}, {first.layout}, repeat {first.repeat}"
    if len(plan.points) > 1:
        title = f"{first.workload.name}, {len(plan.points)} launches, {plan.shape}, up to {plan.layout}"
    return " ".join(title.split())


def _own_words(launch: JobLaunch) -> tuple[str, ...]:
    """Return the words of a launch that no other has."""
    return ("--point", launch.point_file, "--record", launch.record)


def launch_spec(
    launch: JobLaunch, point: Point, folder: Path, data_dir: str | None, *, python: str = sys.executable
) -> LaunchSpec:
    """Return how the ranks of a `launch` start that trains `point` by `python` in a turn block; logs below `folder`."""
    words = (*launch.launcher.words, python, "-m", "harness", "train")
    if data_dir is not None:
        words += ("--data-dir", data_dir)
    return LaunchSpec(
        name=launch.name,
        words=(*words, *_own_words(launch)),
        log=str(SweepFolder(folder).log(point.folder)),
        changes={
            "HARNESS_LAUNCHER": " ".join(launch.launcher.words),
            **thread_limits(launch.layout.threads),
            **dict(point.settings),
        },
    )
