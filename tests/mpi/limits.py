"""The C++ part with limits that a test reaches: messages of 100,000 elements, waits that have almost looked too often.

Only the two sources that have the limits are compiled again. Their functions take the place of those of the whole
library, which is loaded as something that theirs needs: what is loaded first is found first.
"""

from harness.comm import native_library
from harness.comm.native import build
from harness.comm.native_library import NativeLibrary

_LIMITS = (f"-DHARNESS_SPINS={2**31 - 1000}", "-DHARNESS_MESSAGE=size_t{100000}")
_PART = build.NativePart(
    library="libharness_limits", sources=("messages.cc", "wait.cc"), headers=build.SUMS_ON_CPU.headers
)


def load_limited() -> NativeLibrary:
    """Return the library with these limits, which the process must load in the place of the usual one."""
    whole = build.build_operation().resolve()
    build.COMPILER_FLAGS = (*build.COMPILER_FLAGS, "-O0", *_LIMITS, "-Wl,--no-as-needed", str(whole))
    return native_library.load_operations(build.build_operation(_PART))
