"""Put a double of a launcher or a batch system where a test's PATH finds it."""

import sys
from pathlib import Path


def install(double: str, target: Path) -> None:
    """Write the program tests/labs/`double` to `target`, for this Python where a first line can name it.

    It is called for each poll, and what else may be called ``python3`` (a shim that looks for versions) starts slowly.
    """
    text = Path(__file__).with_name(double).read_text(encoding="utf-8")
    if " " not in sys.executable and len(sys.executable) < 100:
        text = text.replace("#!/usr/bin/env python3", f"#!{sys.executable} -S", 1)
    target.write_text(text, encoding="utf-8")
    target.chmod(0o755)
