"""The nodes of a PBS job in which the command is given: ``qsub -I``, a batch script."""

import os
import time

from harness.base.errors import UserError
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

    def seconds_left(self) -> float | None:
        """Return what qstat says, None for a job without a limit, or where qstat does not answer."""
        job = os.environ.get("PBS_JOBID", "")
        try:
            return pbs.read_pbs_time_left(self._table([job]).get(job, {}), time.time())
        except UserError:
            return None
