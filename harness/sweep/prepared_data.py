"""The data of a sweep before its launches: brought into the cache, and the network tried on it."""

from pathlib import Path

from harness.datasets import locate, own_file_lines, prepare
from harness.models import check_model
from harness.schema.option import is_own_code
from harness.schema.user_script import SCRIPT
from harness.sweep.planned_launches import SweepPlan
from harness.sweep.progress import say


def prepare_data(plan: SweepPlan, data_dir: Path | None, *, own_only: bool = False) -> None:
    """Bring the data into the cache before the first launch, not inside it, and try the network.

    With `own_only` that is done with a file or a network of the user's own only, which may be wrong: reading the
    others takes long, and is no reason to refuse.

    Raises:
        UserError: the data or the network is wrong.
    """
    lines: set[str] = set()
    tried = bool(plan.survey.records) or not plan.jobs
    asked = dict.fromkeys((point.workload, point.data_id) for point in plan.missing or plan.points[:1])
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
