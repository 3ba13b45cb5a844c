"""The harness in EESSI's test suite: with each TensorFlow module it trains on the ranks that the suite places.

``reframe -C its/config/site.py -c jobs/reframe/eessi -r --tag 1_node``. Beside the suite's own TensorFlow test, which
trains by MultiWorkerMirroredStrategy: here gradients are summed over MPI. The module's Python needs the harness.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import reframe as rfm
import reframe.utility.sanity as sn
from eessi.testsuite.constants import COMPUTE_UNITS, DEVICE_TYPES
from eessi.testsuite.eessi_mixin import EESSI_Mixin
from eessi.testsuite.utils import find_modules
from reframe.core.builtins import parameter, performance_function, run_after, sanity_function


@rfm.simple_test
class EESSI_MPI_TF_Harness(rfm.RunOnlyRegressionTest, EESSI_Mixin):
    """Training rows a second: one rank for each socket or GPU, as the suite's TensorFlow test has them."""

    module_info = parameter(find_modules("TensorFlow"))
    device_type = parameter([DEVICE_TYPES.CPU, DEVICE_TYPES.GPU])
    readonly_files: ClassVar = [""]
    executable = "python3 -m harness"

    def required_mem_per_node(self) -> int:
        """Return MiB, as the suite's TensorFlow test."""
        return int(self.num_tasks_per_node) * 2048

    @run_after("init")
    def count_ranks(self) -> None:
        """Say what a rank is placed on."""
        on_gpus = self.device_type == DEVICE_TYPES.GPU
        self.compute_unit = COMPUTE_UNITS.GPU if on_gpus else COMPUTE_UNITS.CPU_SOCKET

    @run_after("setup")
    def ask(self) -> None:
        """Ask for the training; a rank has a thread for each of its cores."""
        gpus = int(self.device_type == DEVICE_TYPES.GPU)
        self.executable_opts = ["train", "--dataset=mnist", "--record=record"]
        self.executable_opts += [f"--threads={self.num_cpus_per_task}", f"--gpus-per-rank={gpus}"]

    @sanity_function
    def trained(self) -> bool:
        """Fail where ranks were not all there, have different weights, or their times are not valid."""
        if not Path(self.stagedir, "record", "run.json").exists():
            return sn.assert_found("there is a record", self.stderr)
        record = self._record()
        same = (len(record["ranks"]), record["weights"]["identical"], record["invalid"])
        return sn.assert_eq(same, (self.num_tasks, True, []))

    @performance_function("rows/s")
    def rows(self) -> float:
        """Return the training rows a second of all ranks, by the median epoch of the slowest."""
        record = self._record()
        rows = record["steps_per_epoch"] * record["global_batch"]
        return float(rows / median(max(epoch["seconds"]) for epoch in record["epochs"]))

    def _record(self) -> dict[str, Any]:
        return dict(json.loads(Path(self.stagedir, "record", "run.json").read_text()))
