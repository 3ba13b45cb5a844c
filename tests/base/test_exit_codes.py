"""Every exit code has one meaning, and docs/exit-codes.md lists it."""

import re
import signal
import subprocess
from pathlib import Path

from harness.base import exit_codes

PAGE = Path(__file__).parents[2] / "docs/exit-codes.md"
CODES = {name: code for name, code in vars(exit_codes).items() if name.isupper()}


def test_no_number_has_two_meanings() -> None:
    assert len(set(CODES.values())) == len(CODES)
    assert 0 not in CODES.values()


def test_the_page_lists_them() -> None:
    rows = re.findall(r"^\| (\d+)(?: \+ N)? \|", PAGE.read_text(), re.M)
    assert {int(number) for number in rows} == {0, *CODES.values()}


def test_a_signal_is_128_and_its_number() -> None:
    killed = subprocess.run(["bash", "-c", "kill -9 $$"], check=False).returncode
    assert exit_codes.of_return_code(killed) == 128 + signal.SIGKILL
    assert exit_codes.of_return_code(3) == 3
