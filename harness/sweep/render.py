"""Job scripts from the templates in ``jobs/templates``."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.files import resource


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """Everything a template may use. `launcher` is the command that starts the ranks, word by word.

    `environment` is exported; a value of None is unset. Paths are absolute.
    """

    title: str
    version: str
    script_name: str
    workdir: str
    threads: int
    gpus_per_rank: int
    environment: Mapping[str, str | None]
    launcher: tuple[str, ...]
    python: str
    point_file: str
    record: str
    data_dir: str | None


def render(template: str, script: Script) -> str:
    """Return the job script that `template`, such as ``local.sh.j2``, makes of `script`.

    Raises:
        jinja2.UndefinedError: the template uses a variable that `Script` does not have.
    """
    import jinja2

    folder: Path = resource("jobs/templates")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell, not HTML: every value passes through `quote`
    )
    environment.filters["quote"] = shlex.quote
    return environment.get_template(template).render(asdict(script))
