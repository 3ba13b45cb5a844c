"""The nodes of a Slurm job in which the command is given: ``salloc``, a batch script."""

import os

from harness.sweep.inside_job import InsideJob
from harness.sweep.schedulers import slurm
from harness.sweep.site import Partition


class Scheduler(InsideJob, slurm.Scheduler):
    """Runs Slurm's scripts in the Slurm job around them."""

    name = "inside"
    around = "slurm"
    needs = ("srun",)

    def node_facts(self) -> Partition | None:
        """Return what the partition of the job has."""
        name = os.environ.get("SLURM_JOB_PARTITION", "")
        return self.site.limits(name) or self._live_limit(name)
