"""The network is found wrong before anything is submitted, not by every job."""

import json
import os
import sys
from pathlib import Path

from harness.base.errors import UserError
from harness.base.processes import ask
from harness.models import check_network
from harness.schema.record import DataRecord
from harness.schema.workload import Workload

_LIMIT_S = 300.0
_REFUSED, _SKIPPED = 2, 3
# In a process of its own: the sweep's command imports no TensorFlow, and a user's module may do what it likes.
_BUILD = f"""
import json, sys
from harness.base.errors import UserError
try:
    import keras
except ImportError as error:
    sys.exit({_SKIPPED})
from harness.models import build
try:
    build(**json.loads(sys.argv[1]))
except UserError as error:
    print(error)
    sys.exit({_REFUSED})
"""


def check_model(workload: Workload, data: DataRecord) -> str | None:
    """Build a user's own network once, check the others' name and data, and return a notice if that was not possible.

    Raises:
        UserError: the network cannot be built for `data`.
    """
    check_network(workload.model, data.features)
    if ":" not in workload.model:
        return None
    asked = {
        "name": workload.model,
        "dataset": workload.dataset,
        "features": data.features,
        "classes": data.classes,
        "init": workload.init,
        "precision": workload.precision,
    }
    path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
    changes = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": path}
    reply = ask([sys.executable, "-c", _BUILD, json.dumps(asked)], limit_s=_LIMIT_S, changes=changes)
    if reply.code == 0:
        return None
    if reply.code in (None, _SKIPPED):
        why = "no TensorFlow here" if reply.code else reply.last_error
        return f"MODEL={workload.model} was not built before the launches: {why}"
    if reply.code == _REFUSED and reply.out.strip():
        raise UserError(reply.out.strip().splitlines()[-1])
    raise UserError(f"MODEL={workload.model} fails while it is built: {reply.last_error}")
