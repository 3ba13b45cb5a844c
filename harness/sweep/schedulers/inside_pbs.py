"""The nodes of a PBS job in which the command is given: ``qsub -I``, a batch script."""

import os

from harness.sweep.schedulers import pbs
from harness.sweep.schedulers.inside import InsideJob
from harness.sweep.site import Partition


class Scheduler(InsideJob, pbs.Scheduler):
    """Runs PBS's scripts in the PBS job around them, whose variables name its nodes."""

    name = "inside_pbs"
    around = "pbs"

    def node_facts(self) -> Partition | None:
        """Return what the site file says of the job's queue, else what pbsnodes says, where it is on this node."""
        return self.site.limits(os.environ.get("PBS_QUEUE", "")) or self._there
