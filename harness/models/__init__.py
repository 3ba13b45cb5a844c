"""The papers' networks, and users' own.

In: a network's name and the shape of its rows.
Out: an uncompiled Keras model.
Never: imports TensorFlow before a network is built; a command that launches tries one in a process of its own.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base.errors import UserError, unknown
from harness.base.processes import run_program
from harness.base.setting_names import setting
from harness.schema.data_record import DataRecord
from harness.schema.option import is_own_code
from harness.schema.own_code import import_own
from harness.schema.workload import IMAGE_NETWORKS, Workload

if TYPE_CHECKING:
    import keras


_INITIALISERS = {"glorot": "GlorotUniform", "fan-in": "LecunNormal"}
_NETWORKS = ("dnn", "cnn", "cnn-relu")


def build_network(
    name: str, *, dataset: str, features: tuple[int, ...], classes: int, init: str, precision: str = "float32"
) -> "keras.Model":
    """Return the network `name` for `dataset`: inputs float32 [rows, *features], output logits [rows, classes].

    A network with auxiliary classifiers has a list of logits as output, its own first. `precision` is the Keras
    dtype policy it computes in.

    `name` is ``dnn``, ``cnn`` (paper A's), ``cnn-relu`` (the same with ReLU in the fully connected layer), one of
    paper B's (`harness.schema.workload`) or ``package.module:function``, a user's function of (features, classes)
    that returns a built Keras model with logits as output. `init` is ``glorot`` or ``fan-in``, N(0, 1/fan_in)
    (truncated, as Keras has it); paper B's networks and a user's bring their own.

    Raises:
        UserError: the network is unknown, does not suit the data, or the user's function does not give a model.
    """
    import keras

    from harness.models import networks

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)  # networks that bring their own layers take it from nowhere else
    try:
        check_network(name, features)
        if is_own_code(name):
            return _user_model(name, features, classes)
        shape = networks.Shape(features, classes)
        if name in IMAGE_NETWORKS:
            return networks.imagenet_network(name, shape)
        kernel = getattr(keras.initializers, _INITIALISERS[init])()
        if name == "dnn":
            return networks.dnn(dataset, shape, kernel)
        return networks.cnn(shape, kernel, full="relu" if name == "cnn-relu" else "sigmoid")
    finally:
        keras.config.set_dtype_policy(before)


def check_network(name: str, features: tuple[int, ...]) -> None:
    """Refuse a network that there is not, or that does not suit rows of `features`; imports nothing.

    Raises:
        UserError: naming what is there, or what the network needs.
    """
    if is_own_code(name):
        return
    if name not in (*_NETWORKS, *IMAGE_NETWORKS):
        raise unknown("model", name, (*_NETWORKS, *IMAGE_NETWORKS))
    if name in ("cnn", "cnn-relu") and len(features) != 3:
        raise UserError(
            f"{setting('model', name)} needs images, but this data set has {features} features a row: use "
            f"{setting('model', 'dnn')}"
        )
    least = IMAGE_NETWORKS[name].least if name in IMAGE_NETWORKS else None
    if least and (len(features) != 3 or features[2] != 3 or min(features[:2]) < least):
        shape = " x ".join(map(str, features))
        raise UserError(
            f"{setting('model', name)} needs colour images of {least} pixels or more, a row here is {shape}: use "
            f"{setting('dataset', 'imagenet')}"
        )


def _user_model(name: str, features: tuple[int, ...], classes: int) -> "keras.Model":
    import keras

    model = import_own("model", name)(features, classes)
    if not isinstance(model, keras.Model):
        raise UserError(f"{setting('model', name)} returned {type(model).__name__}: it must return a keras.Model")
    if not model.built or tuple(model.output_shape) != (None, classes):
        raise UserError(
            f"{setting('model', name)} must return a built model with {classes} logits a row, not output "
            f"{model.output_shape}"
            if model.built
            else f"{setting('model', name)} returned a model that is not built: start it with keras.Input({features})"
        )
    last = model.layers[-1]
    while isinstance(last, keras.Model):  # a model as the last layer of a model
        last = last.layers[-1]
    if isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax:
        raise UserError(
            f"{setting('model', name)} ends in softmax, and the loss takes one itself: leave out that of '{last.name}'"
        )
    return model


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
from harness.models import build_network
try:
    build_network(**json.loads(sys.argv[1]))
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
    reply = run_program([sys.executable, "-c", _BUILD, json.dumps(asked)], limit_s=_LIMIT_S, changes=changes)
    if reply.code == 0:
        return None
    if reply.code in (None, _SKIPPED):
        why = "no TensorFlow here" if reply.code else reply.last_error
        return f"{setting('model', workload.model)} was not built before the launches: {why}"
    if reply.code == _REFUSED and reply.out.strip():
        raise UserError(reply.out.strip().splitlines()[-1])
    raise UserError(f"{setting('model', workload.model)} fails while it is built: {reply.last_error}")
