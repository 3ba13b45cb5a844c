"""ReFrame checks of how training scales here, one for each workload and number of ranks.

``reframe -c jobs/reframe -r --exec-policy=serial``: what is timed at the same time would share cores. The checks run
where ReFrame runs, for the harness submits its own jobs, to the scheduler of ReFrame's partition. `docs/reframe.md` has
what a centre sets.
"""

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import reframe as rfm
import reframe.utility.typecheck as typ
from reframe.core.builtins import parameter, performance_function, run_before, sanity_function, variable
from reframe.core.exceptions import SanityError
from reframe.core.logging import getlogger


@rfm.simple_test
class Scaling(rfm.RunOnlyRegressionTest):
    """Speedup and efficiency of `ranks` ranks, one a node (on one machine: one a core), over one; rows a second."""

    workload = parameter(["adult", "mnist", "higgs"])
    ranks = parameter([2, 4, 8, 16])

    options = variable(typ.List[str], value=[])  # further words of `harness sweep`, such as --account=physics
    least_efficiency = variable(float, value=0.5)
    least_rows = variable(float, value=0.0)  # a second; what a centre has measured

    valid_systems: ClassVar = ["*"]
    valid_prog_environs: ClassVar = ["*"]
    executable = "harness"
    local = True

    @run_before("run")
    def ask(self) -> None:
        """Ask for the sweep, by the scheduler that ReFrame's partition has."""
        scheduler = self.current_partition.scheduler.registered_name
        here = len(os.sched_getaffinity(0))
        self.skip_if(
            scheduler == "local" and self.ranks > here, f"{self.ranks} ranks need {self.ranks} cores of {here}"
        )
        self.executable_opts = ["sweep", f"--dataset={self.workload}", f"--nodes=1,{self.ranks}", "--json"]
        self.executable_opts += [f"--scheduler={_SCHEDULERS.get(scheduler, scheduler)}", *self.options]

    @sanity_function
    def answered(self) -> bool:
        """Fail with the harness's own sentence; launches without valid times are no numbers. Tell its warnings."""
        said = Path(self.stagedir, self.stderr.evaluate()).read_text().strip().splitlines()
        if self.job.exitcode:
            raise SanityError(f"exit code {self.job.exitcode}: {' '.join(said[-1:])}")
        if not self._point():
            unmeasured = f"{self.ranks} ranks were not measured"
            why = [line for line in said if line.startswith("not run") or "times not valid" in line]
            raise SanityError("; ".join([unmeasured, *why]))
        for text in self._answer().get("warnings", ()):
            getlogger().warning(f"{self.display_name}: {text}")
        return True

    @run_before("performance")
    def expect(self) -> None:
        """Set the references: ideal scaling less what is allowed, and the rows that were measured before."""
        below = self.least_efficiency - 1
        self.reference = {
            "*": {
                "speedup": (self.ranks, below, None, "times"),
                "efficiency": (1, below, None, "1"),
                "rows": (self.least_rows, 0, None, "rows/s") if self.least_rows else (0, None, None, "rows/s"),
            }
        }

    @performance_function("times")
    def speedup(self) -> float:
        """Return how many times as fast as one rank all train."""
        return float(self._point()["speedup"])

    @performance_function("1")
    def efficiency(self) -> float:
        """Return the speedup over the ratio of the cores."""
        return float(self._point()["efficiency"])

    @performance_function("rows/s")
    def rows(self) -> float:
        """Return the training rows a second of all ranks."""
        return float(self._point()["rows_per_second"])

    def _answer(self) -> dict[str, Any]:
        return dict(json.loads(Path(self.stagedir, self.stdout.evaluate()).read_text()))

    def _point(self) -> dict[str, Any]:
        points = self._answer().get("scaling", {}).get("points", ())
        return next((dict(point) for point in points if point["ranks"] == self.ranks and point["speedup"]), {})


@rfm.simple_test
class Regression(rfm.RunOnlyRegressionTest):
    """Did scaling get worse since a baseline? To be run after a maintenance; the study is measured again."""

    baseline = variable(str, value="main")
    options = variable(typ.List[str], value=[])  # further words of `harness check`, such as --until-sure=30
    folder = variable(str, value="")  # that of the harness's results, with the baseline

    valid_systems: ClassVar = ["*"]
    valid_prog_environs: ClassVar = ["*"]
    executable = "harness"
    local = True

    @run_before("run")
    def ask(self) -> None:
        """Ask for the check, by the scheduler that ReFrame's partition has."""
        self.skip_if(not self.folder, "name the folder of results: -S Regression.folder=/path/to/results")
        scheduler = self.current_partition.scheduler.registered_name
        self.executable_opts = ["check", f"--against={self.baseline}", "--other-machine", "--json"]
        self.executable_opts += [f"--results={self.folder}", f"--baselines={self.folder}/baselines"]
        self.executable_opts += [f"--scheduler={_SCHEDULERS.get(scheduler, scheduler)}", *self.options]

    @sanity_function
    def answered(self) -> bool:
        """Fail with the harness's sentence on a regression (1) and where nothing is compared (2); 3 is a warning."""
        said = Path(self.stagedir, self.stderr.evaluate()).read_text().strip().splitlines()
        if self.job.exitcode not in (0, 1, 3):
            raise SanityError(f"exit code {self.job.exitcode}: {' '.join(said[-1:])}")
        answer = json.loads(Path(self.stagedir, self.stdout.evaluate()).read_text())["answer"]
        if self.job.exitcode == 1:
            raise SanityError(answer)
        if self.job.exitcode == 3:
            getlogger().warning(f"{self.display_name}: {answer}")
        return True


_SCHEDULERS = {"squeue": "slurm", "pbspro": "pbs"}
"""The harness's names of schedulers that ReFrame calls otherwise."""
