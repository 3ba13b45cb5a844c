"""The files of a job: the points for the ranks, the script from its template, the turn block, the logs."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base import __version__
from harness.base.errors import UserError
from harness.base.files import cache_folder, resource, write_atomic
from harness.base.processes import thread_limits
from harness.base.removal import remove_file
from harness.base.setting_names import setting
from harness.schema.layout import Layout
from harness.schema.point import Point
from harness.schema.record import encode
from harness.schema.sweep_folder import SweepFolder
from harness.sweep.job_cost import PastLaunches, past_launches, time_limit
from harness.sweep.job_plan import Job
from harness.sweep.launch_command import LaunchCommand, surviving
from harness.sweep.schedulers import Scheduler
from harness.sweep.site import JobRequest, Site, walltime
from harness.sweep.submission_settings import Submission
from harness.sweep.turn_block import BlockSeries, LaunchSpec, TurnBlock

# A job script from its template: what templates may use, and directives that a scheduler would misread.

TEMPLATES = "jobs/templates"
_ENDING_S = 30.0  # of a job's time limit: what its start and its last block's end take beside the blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class JobLaunch:
    """A launch of `point`: `launcher` starts its ranks, which read `point_file` and write the folder `record`."""

    point: Point
    launcher: LaunchCommand
    point_file: str
    record: str

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.point.folder

    @property
    def layout(self) -> Layout:
        """The layout of its ranks."""
        return self.point.layout


@dataclass(frozen=True, kw_only=True, slots=True)
class JobScript:
    """Everything a template may use, users' own ones too.

    `name` is the job's name in the queue. `launches` are those of one job, of blocks one of each layout. `layout` is
    that of the largest launch. `node_check` are the words that try a node, for at most `node_check_s` seconds.
    `mode` and `in_turns` are those of the job; the `mode` of the doctor's script is ``check``, whose ranks start by
    `check_words`. `request` and `site` hold the directives, modules and set-up lines. `jobs` and `logs` are folders;
    `environment` is exported, a value of None is unset; `binds` are the folders that a container needs. Paths are
    absolute.
    """

    name: str
    title: str
    version: str
    script_name: str
    workdir: str
    layout: Layout
    environment: Mapping[str, str | None]
    python: str
    jobs: str
    logs: str
    data_dir: str | None
    launches: tuple[JobLaunch, ...] = ()
    check_words: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()
    mode: str = "jobs"
    in_turns: bool = False
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
        raise UserError(f"{setting('template', template)} cannot be found: {error.name} is missing") from error
    except jinja2.TemplateSyntaxError as error:
        raise UserError(
            f"{setting('template', template)} has an error in line {error.lineno}: {error.message}"
        ) from error
    except jinja2.UndefinedError as error:
        raise UserError(
            f"{setting('template', template)} uses a variable that does not exist: {error.message}"
        ) from error


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
        raise UserError(f"{setting('template', template)} has CRLF line ends: save it with LF ones")
    commands = False
    for number, line in enumerate(script.splitlines(), start=1):
        if line.startswith(scheduler.directive):
            wrong = scheduler.refuse_line(line)
            if commands:
                wrong = f"stands after the first command, where {scheduler.name} ignores it: move it up"
            if wrong:
                raise UserError(f"{setting('template', template)}: line {number} of the script, '{line}', {wrong}")
        elif line.strip() and not line.startswith("#"):
            commands = True


def _words(words: tuple[str, ...]) -> str:
    """Return words quoted for the shell; a leading ``$jobs/`` stays the script's own variable."""
    return " ".join(
        f'"$jobs"/{shlex.quote(word.removeprefix("$jobs/"))}' if word.startswith("$jobs/") else shlex.quote(word)
        for word in words
    )


def write_job(job: Job, scheduler: Scheduler, submission: Submission) -> None:
    """Write the script of `job` and what it reads; data folder and template are those of `submission`.

    Raises:
        UserError: the folder cannot be written to, or the user's template is wrong.
    """
    files = job.files
    request = scheduler.request
    past = past_launches(files, request.partition) if job.is_shared else PastLaunches()
    limit_s = time_limit(job, request, scheduler.limit(), past)
    script = _job_script(job, scheduler, submission, limit_s)
    template = submission.template or scheduler.template
    text = render_script(template, script, scheduler.path)
    check_directives(text, scheduler, template)
    for point in job.launches:
        write_atomic(files.point(point.folder), encode(point))
        write_atomic(files.log(point.folder), "")
        for left in (files.exit_code(point.folder), files.words(point.folder), files.lost_nodes(point.folder)):
            remove_file(left)
    for helper in scheduler.helpers(job.layout):
        program = files.jobs / helper
        write_atomic(program, (resource(TEMPLATES) / helper).read_text())
        program.chmod(0o755)
    write_atomic(job.script, text)
    if job.in_turns:
        series = _series(job, scheduler, script, limit_s)
        write_atomic(job.script.with_suffix(".json"), encode(series))
        remove_file(files.blocks_made(job.name))


def _named_in_script(job: Job, scheduler: Scheduler) -> tuple[Point, ...]:
    """Return the launches that a job's script names: of the blocks of a batch system the first of each layout."""
    if not job.in_turns or not scheduler.survives_client:
        return job.points
    first_of: dict[Layout, Point] = {}
    for point in job.points:
        first_of.setdefault(point.layout, point)
    return tuple(first_of.values())


def _job_launch(point: Point, scheduler: Scheduler, files: SweepFolder) -> JobLaunch:
    return JobLaunch(
        point=point,
        launcher=surviving(scheduler.launcher(point.layout), point),
        point_file=str(files.point(point.folder)),
        record=str(files.launch(point.folder).path),
    )


def _job_script(job: Job, scheduler: Scheduler, submission: Submission, limit_s: float) -> JobScript:
    """Return what the template of the script of `job`, whose time limit is `limit_s`, may use."""
    data_dir = None if submission.data_dir is None else str(Path(submission.data_dir).resolve())
    variables = dict(scheduler.environment(job.layout))
    if scheduler.request.container:  # it has an MPI library of its own, wherever that is
        variables |= {"MPI4PY_LIBMPI": None, "MPI4PY_MPIABI": None}
    return JobScript(
        name=job.name,
        title=_title(job),
        version=__version__,
        script_name=job.script.name,
        workdir=str(Path.cwd()),
        layout=job.layout,
        environment=variables | dict(job.points[0].settings),
        python=sys.executable,
        jobs=str(job.files.jobs),
        logs=str(job.files.logs),
        data_dir=data_dir,
        launches=tuple(_job_launch(point, scheduler, job.files) for point in _named_in_script(job, scheduler)),
        binds=_used_folders(job, data_dir),
        mode=job.mode,
        in_turns=job.in_turns,
        node_check=scheduler.node_check(job.layout),
        walltime=walltime(limit_s),
        request=scheduler.request,
        site=scheduler.site,
    )


def _used_folders(job: Job, data_dir: str | None) -> tuple[str, ...]:
    """Return the folders that ranks read and write, each once."""
    workload = job.points[0].workload
    folders = [Path.cwd(), job.files.path, cache_folder()]
    if data := data_dir or os.environ.get("HARNESS_DATA_DIR"):
        folders.append(Path(data))
    if workload.own_file:
        folders += [workload.own_file.parent, workload.own_file.resolve().parent]  # it may be a link
    if workload.script:
        folders.append(workload.script.path.parent)
    return tuple(dict.fromkeys(str(path.resolve()) for path in folders))


def _series(job: Job, scheduler: Scheduler, script: JobScript, limit_s: float) -> BlockSeries:
    """Return the blocks of the launches of `job`, which its `script` starts."""
    begun = f"{datetime.now(UTC):%Y%m%dT%H%M%S}"  # not the name of the same launches at another time
    blocks: list[TurnBlock] = []
    for number, points in enumerate((*job.needed_blocks, *job.extra_blocks)):
        name = f"{job.script.stem}-{begun}" + (f"-{number + 1}" if number else "")
        block = TurnBlock(
            name=name,
            launches=tuple(_block_launch(point, job, scheduler, script) for point in points),
            rounds=str(job.files.block_turns(name)),
            limit_s=limit_s if scheduler.survives_client else 0.0,
            on_gpus=any(point.layout.gpus_per_rank for point in points),
        )
        blocks.append(block)
    last_repeat = job.needed_blocks[-1][0].repeat  # which extra launches make again
    return BlockSeries(
        blocks=tuple(blocks),
        least=len(job.needed_blocks),
        of_repeat=sum(block[0].repeat == last_repeat for block in job.needed_blocks),
        folder=str(job.files.path),
        limit_s=limit_s - _ENDING_S if scheduler.survives_client else 0.0,
        enforced=not scheduler.around,
        nodes=job.layout.nodes,
        partition=scheduler.request.partition,
        progress_file=str(job.files.blocks_made(job.name)),
    )


def _block_launch(point: Point, job: Job, scheduler: Scheduler, script: JobScript) -> LaunchSpec:
    """Return how the launch of `point` starts in its block; the `script` writes the words of one of its layout."""
    launch = _job_launch(point, scheduler, job.files)
    spec = replace(launch_spec(launch, script.data_dir), exit_file=str(job.files.exit_code(launch.name)))
    if not scheduler.survives_client:
        return spec
    named = next(named.name for named in script.launches if named.layout == point.layout)
    words_file = str(job.files.words(named))  # a job learns of its nodes when it has them
    return replace(spec, words=_own_words(launch), words_file=words_file)


def _title(job: Job) -> str:
    """Return the script's first line, for people."""
    first = job.points[0]
    title = f"{first.workload.name}, {first.layout}, repeat {first.repeat}"
    if len(job.points) > 1:
        order = "block" if job.in_turns else {"turns": "one after the other"}.get(job.mode, job.mode)
        title = f"{first.workload.name}, {len(job.points)} launches, {order}, up to {job.layout}"
    return " ".join(title.split())


def _own_words(launch: JobLaunch) -> tuple[str, ...]:
    """Return the words of a launch that no other has."""
    return ("--point", launch.point_file, "--record", launch.record)


def launch_spec(launch: JobLaunch, data_dir: str | None, *, python: str = sys.executable) -> LaunchSpec:
    """Return how the ranks of a `launch` start by `python` in a turn block; its log is in the folder of its sweep."""
    words = (*launch.launcher.words, python, "-m", "harness", "train")
    if data_dir is not None:
        words += ("--data-dir", data_dir)
    return LaunchSpec(
        name=launch.name,
        words=(*words, *_own_words(launch)),
        log=str(SweepFolder(Path(launch.record).parent).log(launch.name)),
        changes={
            "HARNESS_LAUNCHER": " ".join(launch.launcher.words),
            **thread_limits(launch.layout.threads),
            **dict(launch.point.settings),
        },
    )
