"""The data of a sweep before its launches: announced, and brought into the cache."""

from collections.abc import Iterable
from pathlib import Path

from harness.base.setting_names import setting
from harness.datasets import locate, own_file_lines, prepare
from harness.models import check_model
from harness.schema.option import is_own_code
from harness.schema.sweep import Sweep
from harness.schema.workload import SCRIPT
from harness.sweep.planned_launches import SweepPlan
from harness.sweep.progress import say

# The data of a sweep before its launches: announced, and brought into the cache.


def prepare_data(plan: SweepPlan, data_dir: Path | None, *, own_only: bool = False) -> None:
    """Bring the data into the cache before the first launch, not inside it, and try the network.

    With `own_only` that is done with a file or a network of the user's own only, which may be wrong: reading the
    others takes long, and is no reason to refuse.

    Raises:
        UserError: the data or the network is wrong.
    """
    lines: set[str] = set()
    tried = bool(plan.survey.records) or not plan.jobs
    asked = dict.fromkeys((point.workload, point.data_id) for point in plan.missing or plan.wanted.points[:1])
    for workload, data_id in asked:
        if own_only and workload.has_known_data and not is_own_code(workload.model):
            continue
        source = locate(workload, data_dir, data_id)
        if source.kind == SCRIPT:
            continue
        data = prepare(source).record
        texts = own_file_lines(data) or ((data.note,) if data.note != source.note else ())
        for text in texts:
            if text and text not in lines:
                say(text)
                lines.add(text)
        if not tried:
            notice = check_model(workload, data)
            if notice:
                say(notice)
            tried = True


# What a sweep says of its data before it begins: which rows, and whether synthetic ones stand in for real ones.


def announce_data(sweeps: Iterable[Sweep], data_dir: Path | None) -> None:
    """Say on which data the `sweeps` train, loudly where synthetic rows stand in for real ones and nobody asked."""
    lines: dict[str, None] = {}
    for workload in dict.fromkeys(sweep.workload for sweep in sweeps):
        source = locate(workload, data_dir)
        unasked = source.kind == "synthetic" and workload.data == "auto" and workload.input != "resident"
        if unasked:
            ways = f"{setting('data_dir', 'FOLDER')} names the real files"
            ways += f", {setting('data_kind', 'synthetic')} hides this line"
            line = f"SYNTHETIC DATA: {source.note}. {ways}."
        else:
            line = f"data: {source.name}, {source.kind}" + (f": {source.note}" if source.note else "")
        lines[line] = None
    for line in lines:
        say(line)
