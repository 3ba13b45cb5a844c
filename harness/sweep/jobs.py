"""The files of a job: the points for the ranks, the script for the scheduler, the logs."""

import sys
from pathlib import Path

from harness.base import __version__
from harness.base.files import resource, write_atomic
from harness.schema.point import Point, digest
from harness.schema.record import encode
from harness.schema.sweep import LOGS
from harness.sweep.job_groups import Group, time_limit
from harness.sweep.render import TEMPLATES, Launch, Script, render
from harness.sweep.scheduler import Job, Scheduler, check_directives

JOBS = "jobs"  # results/<sweep>/jobs/<point folder>.{json,sh,exit}


def write_job(point: Point, scheduler: Scheduler, *, folder: Path, data_dir: Path | None) -> Job:
    """Write the point file and the script of a job for `point` alone, see `write_group`."""
    return write_group(Group(shape="jobs", points=(point,)), scheduler, folder=folder, data_dir=data_dir)


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
    script = Script(
        name=name,
        title=" ".join(_title(group).split()),
        version=__version__,
        script_name=path.name,
        workdir=str(Path.cwd()),
        layout=layout,
        launches=tuple(_launch(point, scheduler, folder) for point in group.points),
        environment={**scheduler.environment(layout), **dict(first.settings)},
        python=sys.executable,
        jobs=str(folder / JOBS),
        logs=str(folder / LOGS),
        data_dir=str(data_dir.resolve()) if data_dir is not None else None,
        shape=group.shape,
        walltime=time_limit(group, scheduler.request, scheduler.limit()),
        request=scheduler.request,
        site=scheduler.site,
    )
    text = render(template or scheduler.template, script, scheduler.path)
    check_directives(text, scheduler, template or scheduler.template)
    _write_inputs(group, scheduler.helpers(layout), folder)
    write_atomic(path, text)
    tasks = len(group.points) if group.shape == "array" else 0
    return Job(name=name, script=path, log=folder / LOGS / f"{first.folder}.log", tasks=tasks)


def _write_inputs(group: Group, helpers: tuple[str, ...], folder: Path) -> None:
    """Write what each launch reads and runs, and empty what an earlier attempt left."""
    for point in group.points:
        write_atomic(folder / JOBS / f"{point.folder}.json", encode(point))
        write_atomic(folder / LOGS / f"{point.folder}.log", "")
        exit_file(folder, point).unlink(missing_ok=True)
    for helper in helpers:
        write_atomic(folder / JOBS / helper, (resource(TEMPLATES) / helper).read_text())
        (folder / JOBS / helper).chmod(0o755)


def queue_name(folder: Path, group: Group) -> str:
    """Return the job's name in the queue: the same for the same launches of the same folder, 14 characters."""
    return f"h-{digest((str(folder.resolve()), [point.key for point in group.points]))}"


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


def _title(group: Group) -> str:
    first = group.points[0]
    if len(group.points) == 1:
        return f"{first.workload.name}, {first.layout}, repeat {first.repeat}"
    return f"{first.workload.name}, {len(group.points)} launches, {group.shape}, up to {group.layout}"
