"""The result table of CARAML's image classification benchmark as CSV, one line for each valid launch.

The header is that of the suite's JUBE result (https://github.com/FZJ-JSC/CARAML), with the energy of a device in Wh in
place of the name of a file.
"""

import csv
import io

from harness.report.answer import Answer
from harness.report.csv_text import csv_cell
from harness.report.formats.format import Format

HEADER = (
    "JobID",
    "System",
    "Version",
    "Queue",
    "Runtime(s)",
    "Model",
    "Dataset",
    "Nodes",
    "Devices",
    "Tasks/Node",
    "Threads/Task",
    "GlobalBatchSize",
    "BatchSize/Device",
    "Images/second",
    "Energy/Device(Wh)",
)


def render(answer: Answer) -> str:
    """Return the benchmark lines of `answer`, fewest devices and nodes first."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)
    for line in sorted(answer.exports.lines, key=lambda line: (line.devices, line.nodes)):
        energy = "" if line.energy_wh is None else f"{line.energy_wh:.2f}"
        cells = (
            line.job,
            line.system,
            line.version,
            line.queue,
            f"{line.runtime_s:.2f}",
            line.model,
            line.dataset,
            line.nodes,
            line.devices,
            line.tasks_per_node,
            line.threads_per_task,
            line.global_batch,
            line.batch_per_device,
            f"{line.rows_per_second:.2f}",
            energy,
        )
        writer.writerow(map(csv_cell, cells))
    return file.getvalue()


FORMAT = Format(name="caraml", commands=frozenset({"report", "sweep"}), render=render)
