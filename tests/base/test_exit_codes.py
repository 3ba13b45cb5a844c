"""Every exit code has one meaning, and README.md lists it."""

import re
import signal
import subprocess
from pathlib import Path

from harness.base import exit_codes

README = Path(__file__).parents[2] / "README.md"
CODES = {name: code for name, code in vars(exit_codes).items() if name.isupper()}


def test_no_number_has_two_meanings() -> None:
    assert len(set(CODES.values())) == len(CODES)
    assert 0 not in CODES.values()


def test_readme_lists_them() -> None:
    rows = re.findall(r"^\| (\d+)(?: \+ N)? \|", README.read_text(), re.M)
    assert {int(number) for number in rows} == {0, *CODES.values()}


def test_a_signal_is_128_and_its_number() -> None:
    killed = subprocess.run(["bash", "-c", "kill -9 $$"], check=False).returncode
    assert exit_codes.of_return_code(killed) == 128 + signal.SIGKILL
    assert exit_codes.of_return_code(3) == 3
