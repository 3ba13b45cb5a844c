"""Keras 2's spellings that Horovod's scripts use, answered on Keras 3; each is told in a line the first time."""

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.losses import losses
from keras.src.metrics import accuracy_metrics
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers.trainer import Trainer
from tensorflow.python.util.object_identity import Reference

from harness.horovod.ranks import say_on_rank_0

_NOTICE = "the script's Keras 2 spelling {} is answered: {}"
_RATE = 0.001  # Keras 2's, of an optimizer whose class gives none
_LEGACY = ("Adagrad", "Adam", "Ftrl", "RMSprop", "SGD", "Optimizer")


def _tell(spelling: str, today: str) -> None:
    say_on_rank_0(_NOTICE.format(spelling, today))


class _Callable(list[Any]):
    """Variables as Keras 3 has them, and Keras 2."""

    def __call__(self) -> "list[Any]":
        _tell("optimizer.variables()", "today optimizer.variables")
        return self


@functools.cache
def offer_keras2() -> None:
    """Put the answers in place, once."""
    variables = BaseOptimizer.variables.fget
    BaseOptimizer.variables = property(lambda optimizer: _Callable(variables(optimizer)))
    BaseOptimizer.lr = property(_rate, _rate)
    BaseOptimizer.__init__ = _rated(BaseOptimizer.__init__)
    words = {"experimental_run_tf_function": "Keras 3 needs it no more"}
    Trainer.compile = _dropping(Trainer.compile, "compile", words)  # Keras asks whether a model has it from here
    layer = keras.layers.BatchNormalization
    words = {"fused": "Keras 3 chooses by itself"}
    layer.__init__ = _dropping(layer.__init__, "BatchNormalization", words)
    del layer.__init__.__wrapped__  # Keras asks for arguments of `__init__` in two ways, which must agree
    words = dict.fromkeys(("workers", "use_multiprocessing", "max_queue_size"), "today a PyDataset has it")
    for name in ("fit", "evaluate", "predict"):
        setattr(TensorFlowTrainer, name, _dropping(vars(TensorFlowTrainer)[name], name, words))
    keras.Variable.ref = lambda variable: Reference(variable)
    keras.Model.fit_generator = _renamed("model.fit_generator", "fit")
    keras.metrics.Metric.reset_states = _renamed("metric.reset_states", "reset_state")
    for optimizers in (keras.optimizers, tf.keras.optimizers):
        for name in _LEGACY:
            setattr(optimizers.legacy, name, _named(optimizers, name))
    keras.layers.Layer.__init__ = _without_itself(keras.layers.Layer.__init__)
    del keras.layers.Layer.__init__.__wrapped__
    keras.layers.Layer.__call__ = _switched_by_place(keras.layers.Layer.__call__)
    keras.Model.save = _saved_today(keras.Model.save)
    _offer_experimental_layers()
    checkpoint = keras.callbacks.ModelCheckpoint
    checkpoint.__init__ = _written_today(checkpoint.__init__)
    for path in ("backend", "layers", "preprocessing.image"):  # tf.keras has kept what keras has not
        today, former = (functools.reduce(getattr, path.split("."), package) for package in (keras, tf.keras))
        vars(today).update({name: value for name, value in vars(former).items() if not hasattr(today, name)})
    functions = {**vars(losses), **vars(accuracy_metrics)}
    for holder in (keras.losses, tf.keras.losses, keras.metrics, tf.keras.metrics):
        for name, function in functions.items():
            if inspect.isfunction(function) and not hasattr(holder, name):
                setattr(holder, name, function)  # mean_squared_error and its kin, which are there under other names


def _offer_experimental_layers() -> None:
    """Let ``layers.experimental.preprocessing`` be the layers, as an attribute and in an import."""
    for package, layers in (("keras", keras.layers), ("tensorflow.keras", tf.keras.layers)):
        if hasattr(layers, "experimental"):
            continue
        experimental = ModuleType(f"{package}.layers.experimental")
        experimental.preprocessing = layers  # type: ignore[attr-defined]
        layers.experimental = experimental
        sys.modules[experimental.__name__] = experimental
        sys.modules[f"{experimental.__name__}.preprocessing"] = layers


def _without_itself(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer's `__init__` that leaves out the layer itself, as ``super().__init__(self)`` gives it."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        if args and args[0] is self:
            _tell("super().__init__(self)", "today super().__init__()")
            args = args[1:]
        return original(self, *args, **named)

    return call


def _switched_by_place(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer's `__call__` that takes switches (`training`) by their place too, after its inputs."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        switches = [place for place, value in enumerate(args) if isinstance(value, bool)]
        if switches and switches[0] > 0:
            _tell("layer(inputs, True)", "today layer(inputs, training=True)")
            parameters = list(inspect.signature(self.call).parameters)
            named |= {parameters[place]: args[place] for place in range(switches[0], len(args))}
            args = args[: switches[0]]
        return original(self, *args, **named)

    return call


def _saved_today(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a model's `save` that knows `save_format`, and writes a folder's SavedModel as one file of Keras 3."""

    @functools.wraps(original)
    def save(self: Any, filepath: Any, *args: Any, **named: Any) -> Any:
        former = named.pop("save_format", None)
        if former is not None and not str(filepath).endswith((".keras", ".h5", ".hdf5")):
            ending = ".h5" if former == "h5" else ".keras"
            _tell(f"model.save(save_format='{former}')", f"today it writes '{filepath}{ending}'")
            filepath = f"{filepath}{ending}"
        return original(self, filepath, *args, **named)

    return save


def _rate(optimizer: Any, *values: Any) -> Any:
    """Return the learning rate, or set it to the one of `values`."""
    _tell("optimizer.lr", "today optimizer.learning_rate")
    for value in values:
        optimizer.learning_rate = value
    return optimizer.learning_rate


def _dropping(original: Callable[..., Any], call: str, notices: dict[str, str]) -> Callable[..., Any]:
    """Return `original`, which `call` names in a line, without the words of Keras 2 in `notices`."""

    @functools.wraps(original)
    def dropped(self: Any, *args: Any, **named: Any) -> Any:
        for word in notices.keys() & named.keys():
            if named.pop(word) is not None:
                _tell(f"{call}({word}=)", notices[word])
        return original(self, *args, **named)

    return dropped


def _rated(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an optimizer's `__init__` that knows `lr` and `decay`."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **named: Any) -> Any:
        if not args:
            named.setdefault("learning_rate", _RATE)
        if "lr" in named:
            _tell("Optimizer(lr=)", "today learning_rate=")
            named["learning_rate"] = named.pop("lr")
        if decay := named.pop("decay", None):
            _tell("Optimizer(decay=)", "today learning_rate=InverseTimeDecay(...)")
            named["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(named["learning_rate"], 1, decay)
        return original(self, *args, **named)

    return call


def _written_today(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, filepath: Any, *args: Any, **named: Any) -> Any:
        if named.pop("period", None) is not None:
            _tell("ModelCheckpoint(period=)", "today save_freq=, it saves after every epoch")
        endings = (".weights.h5",) if named.get("save_weights_only") else (".keras", ".h5")
        if not str(filepath).endswith(endings):
            _tell(f"ModelCheckpoint('{filepath}')", f"today it writes '{filepath}{endings[0]}'")
            filepath = f"{filepath}{endings[0]}"
        return original(self, filepath, *args, **named)

    return call


def _renamed(spelling: str, name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **named: Any) -> Any:
        _tell(spelling, f"today {name}")
        return getattr(self, name)(*args, **named)

    return call


def _named(optimizers: Any, name: str) -> Any:
    """Return today's class, which tells of itself when it is made under the old name."""
    today = getattr(optimizers, name)

    class Legacy(type(today)):  # type: ignore[misc]
        def __call__(cls, *args: Any, **named: Any) -> Any:
            _tell(f"optimizers.legacy.{name}", f"today optimizers.{name}")
            return today(*args, **named)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, today)

    return Legacy(name, (today,), {})
