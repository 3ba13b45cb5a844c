"""The files of a job: the points for the ranks, the script for the scheduler, the logs."""

import sys
from pathlib import Path

from harness.base import __version__
from harness.base.files import resource, write_atomic
from harness.schema.point import Point, digest
from harness.schema.record import encode
from harness.schema.sweep import LOGS
from harness.sweep.job_groups import Group, time_limit
from harness.sweep.job_options import Request
from harness.sweep.render import TEMPLATES, Launch, Script, check_directives, render
from harness.sweep.schedulers import Job, Scheduler
from harness.sweep.schedulers.pbs import REMOTE
from harness.sweep.site import Site

JOBS = "jobs"  # results/<sweep>/jobs/<point folder>.{json,sh,exit}


def write_job(point: Point, scheduler: Scheduler, *, folder: Path, data_dir: Path | None) -> Job:
    """Write the point file and the script of a job for `point` alone, see `write_group`."""
    return write_group(Group(shape="jobs", points=(point,)), scheduler, folder=folder, data_dir=data_dir)


def write_group(
    some: Group,
    scheduler: Scheduler,
    *,
    folder: Path,
    data_dir: Path | None,
    request: Request | None = None,
    site: Site | None = None,
    template: str | None = None,
) -> Job:
    """Write the point files and the script of one job under the sweep's `folder` and return the job.

    Raises:
        UserError: the folder cannot be written to, or the user's `template` is wrong.
    """
    folder = folder.resolve()
    request, site = request or Request(), site or Site()
    jobs, logs = folder / JOBS, folder / LOGS
    launches = tuple(_launch(point, scheduler, folder) for point in some.points)
    first = some.points[0]
    name = queue_name(folder, some)
    script = jobs / (f"{first.folder}.sh" if some.shape == "jobs" else f"{some.shape}-{name}.sh")
    layout = some.layout
    variables = Script(
        name=name,
        title=_title(some),
        version=__version__,
        script_name=script.name,
        workdir=str(Path.cwd()),
        layout=layout,
        launches=launches,
        environment={**scheduler.environment(layout), **dict(first.settings)},
        python=sys.executable,
        jobs=str(jobs),
        logs=str(logs),
        data_dir=str(data_dir.resolve()) if data_dir is not None else None,
        shape=some.shape,
        walltime=time_limit(some, request, scheduler.limit()),
        request=request,
        site=site,
    )
    text = render(template or scheduler.template, variables)
    check_directives(text, scheduler.name, template or scheduler.template)
    _write_points(some, folder)
    if scheduler.name == "pbs" and layout.nodes > 1:
        write_atomic(jobs / REMOTE, (resource(TEMPLATES) / REMOTE).read_text())
        (jobs / REMOTE).chmod(0o755)
    write_atomic(script, text)
    return Job(
        name=name,
        script=script,
        log=logs / f"{first.folder}.log",
        tasks=len(launches) if some.shape == "array" else 0,
    )


def _write_points(some: Group, folder: Path) -> None:
    """Write what each launch reads, and empty what an earlier attempt left."""
    for point in some.points:
        write_atomic(folder / JOBS / f"{point.folder}.json", encode(point))
        write_atomic(folder / LOGS / f"{point.folder}.log", "")
        exit_file(folder, point).unlink(missing_ok=True)


def queue_name(folder: Path, some: Group) -> str:
    """Return the job's name in the queue: the same for the same launches of the same folder, 14 characters."""
    return f"h-{digest((str(folder.resolve()), [point.key for point in some.points]))}"


def exit_file(folder: Path, point: Point) -> Path:
    """Return the file to which a batch job writes the exit code of `point`'s ranks."""
    return folder / JOBS / f"{point.folder}.exit"


def _launch(point: Point, scheduler: Scheduler, folder: Path) -> Launch:
    return Launch(
        name=point.folder,
        layout=point.layout,
        launcher=scheduler.launcher(point.layout),
        point_file=str(folder / JOBS / f"{point.folder}.json"),
        record=str(folder / point.folder),
    )


def _title(some: Group) -> str:
    first = some.points[0]
    if len(some.points) == 1:
        return f"{first.workload.name}, {first.layout}, repeat {first.repeat}"
    return f"{first.workload.name}, {len(some.points)} launches, {some.shape}, up to {some.layout}"
