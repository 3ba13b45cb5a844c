"""Job scripts from the templates in ``jobs/templates``."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import resource
from harness.schema.layout import Layout
from harness.sweep.job_options import Request
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.site import Site

TEMPLATES = "jobs/templates"


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One point of a job. `name` is its folder's name; `launcher` starts its ranks."""

    name: str
    layout: Layout
    launcher: LaunchCommand
    point_file: str
    record: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """Everything a template may use; the README lists it for users' own templates.

    `name` is the job's name in the queue. `layout` is that of the largest launch. `request` and `site` hold the
    directives, modules and set-up lines. `jobs` and `logs` are folders; `environment` is exported, a value of
    None is unset. Paths are absolute.
    """

    name: str
    title: str
    version: str
    script_name: str
    workdir: str
    layout: Layout
    launches: tuple[Launch, ...]
    environment: Mapping[str, str | None]
    python: str
    jobs: str
    logs: str
    data_dir: str | None
    shape: str = "jobs"
    walltime: str = ""
    request: Request = field(default_factory=Request)
    site: Site = field(default_factory=Site)


def render(template: str, script: Script, path: Callable[[str], str] = str) -> str:
    """Return the job script that `template` makes of `script`.

    `template` is a file of ``jobs/templates`` such as ``local.sh.j2``, or the path of a user's own, which may
    extend those. `path` writes a path as the scheduler's directives take it.

    Raises:
        UserError: the template is missing, has an error or uses a variable that `Script` does not have.
    """
    import jinja2

    own = Path(template) if "/" in template or not (resource(TEMPLATES) / template).exists() else None
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*([own.parent] if own else []), resource(TEMPLATES)]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # shell, not HTML: every value passes through `quote`
    )
    environment.filters["quote"] = shlex.quote
    environment.filters["words"] = _words
    environment.filters["path"] = path
    variables = {name: getattr(script, name) for name in script.__slots__}
    try:
        return environment.get_template(own.name if own else template).render(variables)
    except jinja2.TemplateNotFound as error:
        raise UserError(f"TEMPLATE={template} cannot be found: {error.name} is missing") from error
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"TEMPLATE={template} has an error in line {error.lineno}: {error.message}") from error
    except jinja2.UndefinedError as error:
        raise UserError(f"TEMPLATE={template} uses a variable that does not exist: {error.message}") from error


def _words(words: tuple[str, ...]) -> str:
    """Return words quoted for the shell; a leading ``$jobs/`` stays the script's own variable."""
    return " ".join(
        f'"$jobs"/{shlex.quote(word.removeprefix("$jobs/"))}' if word.startswith("$jobs/") else shlex.quote(word)
        for word in words
    )
