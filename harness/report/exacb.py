"""A sweep's launches as exaCB, the continuous benchmarks of JUPITER, has them: version 1 of what its `jureap` writes.

Values are texts there, and its pages read all runtimes, also those of runs without success.
"""

import json
import math

import pandas as pd

from harness.analysis.read_results import Loaded
from harness.report.launch_summary import on_one_machine
from harness.schema.layout import Layout

EXACB = "exacb.json"
_METRICS = ("seconds", "rows_per_second", "train_loss", "test_accuracy")


def exacb(loaded: Loaded, launches: pd.DataFrame) -> str:
    """Return the launches of `loaded`, at least one with a record, as such a report; `launches` is their frame.

    The runtime is of all epochs, in seconds; "nan" where times are not valid or the launch failed.
    """
    here, jobs = on_one_machine(loaded.runs), {one.launch: one.job for one in loaded.accounts}

    def entry(launch: str, layout: Layout, runtime: float, metrics: dict[str, object]) -> dict[str, object]:
        return {
            "success": str(math.isfinite(runtime)).lower(),
            "runtime": str(runtime),
            "parameter": {
                "nodes": str(1 if here else layout.nodes),
                "taskspernode": str(layout.ranks if here else layout.ranks_per_node),
                "threadspertask": str(layout.threads),
            },
            "slurm_jobid": jobs.get(launch, ""),
            "queue": "",
            "metrics": {name: str(value) for name, value in metrics.items()},
        }

    rows = launches.set_index("run")
    data = []
    for run in loaded.runs:
        row = rows.loc[run.point.folder]
        metrics = {"invalid": row["invalid"]} if run.invalid else {name: row[name] for name in _METRICS}
        if run.met:
            metrics["warning"] = run.met
        runtime = math.nan if run.invalid else float(row["trained_s"])  # type: ignore[arg-type]
        data.append(entry(run.point.folder, run.point.layout, runtime, metrics))
    for one in loaded.failures:
        data.append(entry(one.point.folder, one.point.layout, math.nan, {"failed": one.reason}))
    first = loaded.runs[0]
    made = {
        "system": first.provenance.machine.hostname,
        "version": first.provenance.harness,
        "timestamp": min(run.started for run in loaded.runs).isoformat(),
    }
    report = {
        "version": 1,
        "reporter": {"generator": "harness", "info": made | {"commit": first.provenance.commit}},
        "parameter": {},
        "experiment": made | {"variant": f"{first.point.scaling}.{first.point.workload.name}"},
        "data": data,
    }
    return json.dumps(report, indent=1) + "\n"
