"""Replace functions of Keras, TensorFlow and the harness's `DataSet` as soon as the script has imported them."""

import ctypes
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.base.errors import RunError, SharedError, UserError
from harness.transparent.run_settings import RunSettings

_PACKAGE = str(Path(__file__).parents[1])
_FOREIGN = ("site-packages", "<frozen", "<string>", "__autograph_generated_file", _PACKAGE)  # TensorFlow makes strings
EXEC = ("execv", "execve")
"""The functions of `os` that all of Python's `os.exec...` call."""
_STANDARD = sysconfig.get_path("stdlib")


def is_script(file: str) -> bool:
    """Tell whether the code in `file` is the script's own."""
    return not any(part in file for part in _FOREIGN)


@functools.cache
def is_own_code(file: str) -> bool:
    """Tell whether the code in `file` is the script's, and none of Python's own modules."""
    return is_script(file) and not file.startswith(_STANDARD)


def script_lines(frame: Any) -> tuple[tuple[str, int], ...]:
    """Return file and line of the script's own calls that have led to `frame`, innermost first."""
    places = ((caller.f_code.co_filename, line) for caller, line in traceback.walk_stack(frame))
    return tuple(place for place in places if is_script(place[0]))


def script_place(frame: Any = None) -> str:
    """Return where the script is, at `frame` or now, in words."""
    lines = script_lines(sys._getframe() if frame is None else frame)
    return f"{Path(lines[0][0]).name}, line {lines[0][1]}" if lines else "after its last line"


def with_script_traceback(error: BaseException) -> BaseException:
    """Return `error` with a traceback that begins in the script, without our own frames; else with all of it."""
    frames = error.__traceback__
    while frames is not None and not is_script(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if frames is None:
        return error
    frame = frames
    while frame.tb_next is not None:
        if frame.tb_next.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            frame.tb_next = frame.tb_next.tb_next
        else:
            frame = frame.tb_next
    return error.with_traceback(frames)


class ImportHook(importlib.abc.MetaPathFinder):
    """Finds modules `names` as usual, and runs `action` when the outermost of their imports has ended.

    TensorFlow and Keras import each other, so the action waits for the one that the script has asked for.
    """

    def __init__(self, action: Callable[[], None], names: Sequence[str] = ("tensorflow", "keras")) -> None:
        self._action = refusing(action)
        self._names = names
        self._depth = 0

    def install(self) -> None:
        """Come before all other finders; act at once where all modules are imported already."""
        if all(name in sys.modules for name in self._names):
            self._action()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec with a loader that notifies this hook when it is done."""
        if fullname not in self._names:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self)
        return spec

    def entered(self) -> None:
        """Note that one of the modules starts to load."""
        self._depth += 1

    def left(self, *, loaded: bool = True) -> None:
        """Note that one of them has loaded, or has failed to; after the outermost that has, act once and go."""
        self._depth -= 1
        if loaded and self._depth == 0 and self in sys.meta_path:
            sys.meta_path.remove(self)
            self._action()


class _NotifyingLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, hook: ImportHook) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._hook.entered()
        try:
            self._loader.exec_module(module)
        except BaseException:
            self._hook.left(loaded=False)
            raise
        self._hook.left()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)  # get_source, get_filename ...: whatever else is asked of a loader


class HorovodScript:
    """Whether the script sees to its ranks itself, by Horovod's `init`: then replacements call the originals."""

    active = False


class Refused(BaseException):
    """A refusal on its way through the script: no `except Exception` takes it for a trial that has failed.

    `error` is what all ranks end with.
    """

    ag_pass_through = True  # see `UserError`

    def __init__(self, error: UserError | RunError | SharedError) -> None:
        super().__init__(str(error))
        self.error = error


class Refusals:
    """The first thing that the script was refused, which ends it whatever it does then.

    `on_ranks`: errors of the replacements themselves are refusals too.
    """

    first: UserError | RunError | SharedError | None = None
    on_ranks = False

    @classmethod
    def check(cls) -> None:
        """Go on if nothing was refused.

        Raises:
            Refused: with what was refused first; see `remember`.
        """
        if cls.first is not None:
            raise cls.remember(cls.first)

    @classmethod
    def remember(cls, error: UserError | RunError | SharedError) -> BaseException:
        """Return what to raise for `error`, which the launch will end with.

        In a thread that is the error itself: a pool of threads waits for ever for one that has ended by anything else.
        """
        cls.first = cls.first or error
        in_main_thread = threading.current_thread() is threading.main_thread()
        return Refused(cls.first) if in_main_thread else cls.first


def refusing(action: Callable[..., Any]) -> Callable[..., Any]:
    """Return `action` with its refusals made such that a script cannot go on after them."""

    @functools.wraps(action)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return action(*args, **kwargs)
        except (UserError, RunError, SharedError) as error:
            raise Refusals.remember(error) from error

    return guarded


originals: list[tuple[object, str, Any]] = []
"""Owner, name and original of everything that is replaced now, in the order in which it was."""


def put(owner: object, name: str, value: Any) -> None:
    """Set an attribute of a class or module, and remember the original for `put_back`."""
    originals.append((owner, name, vars(owner).get(name, getattr(owner, name))))
    setattr(owner, name, value)


def end_at_exec(end: Callable[[], None]) -> None:
    """Have this process, a witness, `end` where its script would put another program in its place."""
    for name in EXEC:
        put(os, name, lambda *_: end())


def put_back() -> None:
    """Undo all replacements, and forget what they have refused: in a child process."""
    Refusals.first = None
    Refusals.on_ranks = False
    while originals:
        setattr(*originals.pop())


def replace(
    owner: object, name: str, parameters: tuple[str, ...], wrapper: Callable[..., Any], *, stays: bool = False
) -> None:
    """Have ``owner.name(...)`` call ``wrapper(original, ...)``.

    `parameters` are the names of the original's first parameters, in order, on which the replacement relies. A
    replacement that `stays` is also used where the script sees to its ranks itself (`HorovodScript`).

    Raises:
        RunError: the installed release has no such function, or it takes other parameters.
    """
    original = vars(owner).get(name)
    where = f"{getattr(owner, '__module__', None) or getattr(owner, '__name__', owner)}.{name}"
    if original is None:
        raise RunError(f"this release of Keras or TensorFlow has no {where}: install the versions in requirements.lock")
    installed = tuple(inspect.signature(original).parameters)[: len(parameters)]
    if installed != parameters:
        raise RunError(
            f"{where} of this release takes {', '.join(installed)} instead of {', '.join(parameters)}: "
            "install the versions in requirements.lock"
        )
    put(owner, name, wrapped(original, wrapper, stays=stays))


def wrapped(original: Callable[..., Any], wrapper: Callable[..., Any], *, stays: bool = False) -> Callable[..., Any]:
    """Return what calls `wrapper` with `original` and its own arguments, and looks like `original`.

    Once the script was refused something, a call raises the same again.
    """

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if HorovodScript.active and not stays:
            return original(*args, **kwargs)
        Refusals.check()
        try:
            return wrapper(original, *args, **kwargs)
        except (UserError, RunError, SharedError) as error:
            raise Refusals.remember(error) from error
        except Exception as error:
            if not Refusals.on_ranks or not _is_of_replacement(error, original):
                raise
            raise Refusals.remember(_not_divided(error)) from error

    return replaced


_EXPECTED = (StopIteration, StopAsyncIteration, OSError)  # what a replacement may raise as the original does
_OF_OPERATIONS = "tensorflow.python.framework.errors_impl"  # errors that the script's own operations end with


def _is_of_replacement(error: Exception, original: Callable[..., Any]) -> bool:
    """Tell whether `error` comes from the replacement that is running, and from nothing that the script has called.

    `original` is what it replaces. If that has no code of Python's, errors cannot be told apart, and are taken
    for its own.
    """
    code = getattr(inspect.unwrap(original), "__code__", None)
    if code is None or isinstance(error, _EXPECTED) or type(error).__module__ == _OF_OPERATIONS:
        return False
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return code not in codes and not any(is_script(inner.co_filename) for inner in codes)


def _not_divided(error: Exception) -> UserError:
    """Return the refusal of what a replacement has failed at."""
    lines = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
    return UserError(
        f"what the script does there ({script_place()}) cannot be divided over the ranks ({message}): run it with -n 1"
    )


_WORDS_BEFORE = 18  # of Python's `PyTypeObject` before `tp_as_buffer`, besides what all objects begin with
_GET_BUFFER = 1  # the number of the slot `Py_bf_getbuffer`


class BufferSlot:
    """The C function of a type that hands out the memory of its objects, Python's buffer protocol.

    NumPy reads objects by it. Without one it calls their method `__array__`, which can be replaced, and `memoryview`
    takes no such objects.
    """

    def __init__(self, owner: type) -> None:
        """Find it.

        Raises:
            RunError: it is elsewhere in this release of Python.
        """
        word = ctypes.sizeof(ctypes.c_void_p)
        place = id(owner) + object.__basicsize__ + _WORDS_BEFORE * word
        functions = ctypes.c_void_p.from_address(place).value
        self._slot = ctypes.c_void_p() if functions is None else ctypes.c_void_p.from_address(functions)
        slot_of = ctypes.pythonapi.PyType_GetSlot
        slot_of.argtypes = [ctypes.py_object, ctypes.c_int]
        slot_of.restype = ctypes.c_void_p
        if self._slot.value != slot_of(owner, _GET_BUFFER):
            raise RunError(f"this release of Python has the buffer of {owner.__name__} elsewhere: install another")

    @property
    def function(self) -> int | None:
        """Its address; None where there is none."""
        return self._slot.value

    @function.setter
    def function(self, address: int | None) -> None:
        self._slot.value = address


class OwnRows:
    """Whether the script has made a `DataSet`: from then on its batches are the rank's own and are not divided."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.present = False

    def install(self) -> None:
        """Notice every `DataSet`."""
        from harness.readers.script_data import (
            DataSet,  # it needs NumPy, whose threads would come before the rank's tree
        )

        replace(DataSet, "__init__", ("self", "data_name"), self._init)

    def _init(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if self._settings.batch == "global":
            raise UserError("DataSet gives every rank rows of its own, so batches are too: leave out --batch global")
        self.present = True
        original(*args, **kwargs)


def offer_old_names() -> None:
    """Let scripts in the style of paper B write ``tf.DataSet``, and those of TensorFlow 1 ``tf.layers``."""
    import tensorflow as tf

    from harness.horovod.tf1_names import answer
    from harness.readers.script_data import DataSet

    tf.DataSet = DataSet
    answer()
