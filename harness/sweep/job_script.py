"""The files of a job: the points for the ranks, the script from its template, the turn block, the logs."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from harness.base import __version__
from harness.base.files import cache_folder, resource, write_atomic
from harness.base.processes import thread_limits
from harness.schema.point import Point
from harness.schema.record import encode
from harness.schema.sweep_folder import SweepFolder
from harness.schema.workload import Workload
from harness.sweep.job_cost import time_limit
from harness.sweep.job_plan import JobPlan, queue_name
from harness.sweep.job_template import TEMPLATES, JobLaunch, JobScript, check_directives, render_script
from harness.sweep.launch_command import surviving
from harness.sweep.schedulers import Job, Scheduler
from harness.sweep.turn_block import LaunchSpec, TurnBlock


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
    launches = _launches(plan, scheduler, files)
    script = _script(plan, scheduler, files, path, launches, data_dir)
    text = render_script(template or scheduler.template, script, scheduler.path)
    check_directives(text, scheduler, template or scheduler.template)
    _write_inputs(plan, scheduler, files)
    write_atomic(path, text)
    if plan.shape == "block":
        block = _turn_block(plan, scheduler, files, path.stem, launches, script.data_dir)
        write_atomic(path.with_suffix(".json"), encode(block))
        return Job(name=name, script=path, log=files.log(name))
    return Job(name=name, script=path, log=files.log(first), tasks=plan.jobs if plan.shape == "array" else 0)


def _launches(plan: JobPlan, scheduler: Scheduler, files: SweepFolder) -> tuple[JobLaunch, ...]:
    return tuple(
        JobLaunch(
            name=point.folder,
            layout=point.layout,
            launcher=surviving(scheduler.launcher(point.layout), point),
            point_file=str(files.point(point.folder)),
            record=str(files.launch(point.folder).path),
        )
        for point in plan.points
    )


def _script(
    plan: JobPlan,
    scheduler: Scheduler,
    files: SweepFolder,
    path: Path,
    launches: tuple[JobLaunch, ...],
    data_dir: Path | None,
) -> JobScript:
    """Return what the template of the script at `path` may use."""
    first = plan.points[0]
    return JobScript(
        name=queue_name(files.path, plan),
        title=_title(plan),
        version=__version__,
        script_name=path.name,
        workdir=str(Path.cwd()),
        layout=plan.layout,
        launches=launches,
        environment=_environment(plan, scheduler),
        python=sys.executable,
        jobs=str(files.jobs),
        logs=str(files.logs),
        data_dir=str(data_dir.resolve()) if data_dir is not None else None,
        binds=_binds(files.path, data_dir, first.workload),
        shape=plan.shape,
        walltime=time_limit(plan, scheduler.request, scheduler.limit()),
        request=scheduler.request,
        site=scheduler.site,
    )


def _title(plan: JobPlan) -> str:
    """Return the script's first line, for people."""
    first = plan.points[0]
    title = f"{first.workload.name}, {first.layout}, repeat {first.repeat}"
    if len(plan.points) > 1:
        title = f"{first.workload.name}, {len(plan.points)} launches, {plan.shape}, up to {plan.layout}"
    return " ".join(title.split())


def _environment(plan: JobPlan, scheduler: Scheduler) -> Mapping[str, str | None]:
    variables = dict(scheduler.environment(plan.layout))
    if scheduler.request.container:  # it has an MPI library of its own, wherever that is
        variables |= {"MPI4PY_LIBMPI": None, "MPI4PY_MPIABI": None}
    return variables | dict(plan.points[0].settings)


def _write_inputs(plan: JobPlan, scheduler: Scheduler, files: SweepFolder) -> None:
    """Write what each launch reads and runs; what an earlier attempt left is emptied."""
    for point in plan.points:
        write_atomic(files.point(point.folder), encode(point))
        write_atomic(files.log(point.folder), "")
        files.exit_code(point.folder).unlink(missing_ok=True)
    for helper in scheduler.helpers(plan.layout):
        program = files.jobs / helper
        write_atomic(program, (resource(TEMPLATES) / helper).read_text())
        program.chmod(0o755)


def _turn_block(
    plan: JobPlan,
    scheduler: Scheduler,
    files: SweepFolder,
    stem: str,
    launches: Sequence[JobLaunch],
    data_dir: str | None,
) -> TurnBlock:
    name = f"{stem}-{datetime.now(UTC):%Y%m%dT%H%M%S}"  # not that of the same launches at another time
    specs: list[LaunchSpec] = []
    for point, launch in zip(plan.points, launches, strict=True):
        spec = launch_spec(launch, point, files.path, data_dir)
        spec = replace(spec, exit_file=str(files.exit_code(launch.name)))
        if scheduler.survives_client:  # a job learns of its nodes when it has them
            spec = replace(spec, words=(), words_file=str(files.words(launch.name)))
        specs.append(spec)
    limit_s = scheduler.request.limit_s(plan.layout.nodes) if scheduler.survives_client else 0.0
    return TurnBlock(
        name=name,
        launches=tuple(specs),
        rounds=str(files.block_turns(name)),
        limit_s=limit_s,
        on_gpus=any(point.layout.gpus_per_rank for point in plan.points),
    )


def launch_spec(launch: JobLaunch, point: Point, folder: Path, data_dir: str | None) -> LaunchSpec:
    """Return how the ranks of a `launch` start that trains `point` in a turn block, and logs below `folder`."""
    words = (*launch.launcher.words, sys.executable, "-m", "harness", "train")
    if data_dir is not None:
        words += ("--data-dir", data_dir)
    return LaunchSpec(
        name=launch.name,
        words=(*words, "--point", launch.point_file, "--record", launch.record),
        log=str(SweepFolder(folder).log(point.folder)),
        changes={
            "HARNESS_LAUNCHER": " ".join(launch.launcher.words),
            **thread_limits(launch.layout.threads),
            **dict(point.settings),
        },
    )


def _binds(folder: Path, data_dir: Path | None, workload: Workload) -> tuple[str, ...]:
    """Return the folders that ranks read and write, each once."""
    folders = [Path.cwd(), folder, cache_folder()]
    if data := data_dir or os.environ.get("HARNESS_DATA_DIR"):
        folders.append(Path(data))
    if workload.own_file:
        folders.append(workload.own_file.parent)
    if workload.script:
        folders.append(workload.script.path.parent)
    return tuple(dict.fromkeys(str(path.resolve()) for path in folders))
