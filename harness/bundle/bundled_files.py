"""What goes into a bundle: plain files only, none of them with a secret in it."""

import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import UserError
from harness.base.secret_text import secrets_in_text

_MOST_STATED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class BundledSecret:
    """What looks like a secret in `file` (its name in the bundle), in `line` from 1; its value is not kept."""

    file: str
    line: int
    name: str

    @property
    def stated(self) -> str:
        """What `--allow` names it by."""
        return f"{self.file}:{self.name}"


def copy_plain_files(folder: Path, target: Path, is_left_out: Callable[[str], bool]) -> None:
    """Copy the plain files below `folder` to the new folder `target`, without the entries that `is_left_out` names.

    Raises:
        UserError: anything else is there: a link would bring in what it shows, a pipe or a device has no content.
    """
    _refuse_link(folder)
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if is_left_out(entry.name):
            continue
        path = Path(entry.path)
        _refuse_link(path)
        if entry.is_dir():
            copy_plain_files(path, target / entry.name, is_left_out)
        elif entry.is_file():
            _copy_file(path, target / entry.name)
        else:
            raise UserError(f"'{path}' is no plain file, and a bundle has nothing else: remove it")


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UserError(f"'{path}' is a link, and a bundle has only files of its own: remove it or copy the file")


def _copy_file(path: Path, target: Path) -> None:
    """Copy a file that has become no link meanwhile."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"'{path}' cannot be put into a bundle ({error.strerror}): mend or remove it") from error
    with os.fdopen(handle, "rb") as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy)


def refuse_secrets_in_files(root: Path, files: Collection[str], allowed: Collection[str]) -> None:
    """Refuse the bundle in `root` if any of its `files` has what looks like a secret and is not among the `allowed`.

    Raises:
        UserError: with file, line and name of the first ones.
    """
    secrets = [secret for name in files for secret in _secrets_of(root, name) if secret.stated not in allowed]
    if not secrets:
        return
    places = [f"'{secret.file}', line {secret.line}: {secret.name}" for secret in secrets[:_MOST_STATED]]
    more = f"; and {len(secrets) - _MOST_STATED} more" if secrets[_MOST_STATED:] else ""
    raise UserError(
        f"what looks like a secret would be in the bundle ({'; '.join(places)}{more}): remove it from these files, or, "
        f"if it is none, say --allow '{secrets[0].stated}'"
    )


def _secrets_of(root: Path, name: str) -> list[BundledSecret]:
    secrets = []
    with (root / name).open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            secrets += [BundledSecret(file=name, line=number, name=secret.name) for secret in secrets_in_text(line)]
    return secrets
