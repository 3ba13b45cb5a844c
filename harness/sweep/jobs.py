"""The files of one launch: the point for the ranks, the script for the scheduler, the log."""

import shlex
import sys
from pathlib import Path

from harness import __version__
from harness.files import write_atomic
from harness.spec.codec import encode
from harness.spec.point import Point
from harness.spec.study import LOGS
from harness.sweep.render import Script, render
from harness.sweep.schedulers import Job, Scheduler

JOBS = "jobs"  # results/<sweep>/jobs/<point folder>.{json,sh}


def write_job(point: Point, scheduler: Scheduler, *, folder: Path, data_dir: Path | None) -> Job:
    """Write the point file and the script of `point` under the sweep's `folder` and return the job.

    Raises:
        UserError: the folder cannot be written to.
    """
    folder = folder.resolve()
    point_file = folder / JOBS / f"{point.folder}.json"
    script = point_file.with_suffix(".sh")
    log = folder / LOGS / f"{point.folder}.log"
    launcher = scheduler.launcher(point.layout)
    variables = Script(
        title=f"{point.workload.name}, {point.layout}, repeat {point.repeat}",
        version=__version__,
        script_name=script.name,
        workdir=str(Path.cwd()),
        threads=point.layout.threads,
        gpus_per_rank=point.layout.gpus_per_rank,
        # The ranks cannot see how they were started: the record quotes this.
        environment={**scheduler.environment(point.layout), "HARNESS_LAUNCHER": shlex.join(launcher)},
        launcher=launcher,
        python=sys.executable,
        point_file=str(point_file),
        record=str(folder / point.folder),
        data_dir=str(data_dir.resolve()) if data_dir is not None else None,
    )
    write_atomic(point_file, encode(point))
    write_atomic(script, render(scheduler.template, variables))
    write_atomic(log, "")
    return Job(script=script, log=log)
