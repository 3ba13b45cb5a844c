"""Scripts that choose their device: the second of two that the processor is cut into stands for a GPU."""

from dataclasses import replace

from tests.scripts.corpus import HEAD, Script, fit, loops, sessions

_SECOND = """
tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * 2)
scope = tf.device('CPU:1'); scope.__enter__()
"""
_SESSION = """
make = tf.Session; tf.Session = lambda: make(config=tf.ConfigProto(device_count={'CPU': 2}))
scope = tf.device('CPU:1'); scope.__enter__()
"""
_NAMES = ("fit-arrays", "loop-mean-compiled", "loop-mean-eager", "loop-metrics-eager", "session-old")


def _second(script: Script) -> Script:
    """Return `script` on the second device."""
    if script.name.startswith("session"):
        source = script.source.replace("tf.disable_v2_behavior()", "tf.disable_v2_behavior()" + _SESSION)
    else:
        source = HEAD + _SECOND + script.source.removeprefix(HEAD)
    assert source.count("CPU:1") == 1
    return replace(script, name=f"device-{script.name}", source=source)


SCRIPTS = [_second(script) for room in (fit, loops, sessions) for script in room.SCRIPTS if script.name in _NAMES]
