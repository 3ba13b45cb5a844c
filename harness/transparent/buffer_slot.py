"""How NumPy reads the memory of a type's objects: by a C function, before it asks them for `__array__`."""

import ctypes

from harness.base.errors import RunError

_WORDS_BEFORE = 18  # of Python's `PyTypeObject` before `tp_as_buffer`, besides what all objects begin with
_GET_BUFFER = 1  # the number of the slot `Py_bf_getbuffer`


class BufferSlot:
    """The C function of a type that hands out the memory of its objects, Python's buffer protocol.

    Without one NumPy calls the method `__array__`, which can be replaced. `memoryview` takes no such objects then.
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
