"""A job script from its template: what templates may use, and directives that a scheduler would misread."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import resource
from harness.schema.layout import Layout
from harness.sweep.launch_command import LaunchCommand
from harness.sweep.schedulers import Scheduler
from harness.sweep.site import JobRequest, Site

TEMPLATES = "jobs/templates"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobLaunch:
    """One point of a job. `name` is its folder's name; `launcher` starts its ranks."""

    name: str
    layout: Layout
    launcher: LaunchCommand
    point_file: str
    record: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JobScript:
    """Everything a template may use, users' own ones too.

    `name` is the job's name in the queue. `layout` is that of the largest launch. `request` and `site` hold the
    directives, modules and set-up lines. `jobs` and `logs` are folders; `environment` is exported, a value of
    None is unset; `binds` are the folders that a container needs. Paths are absolute.
    """

    name: str
    title: str
    version: str
    script_name: str
    workdir: str
    layout: Layout
    launches: tuple[JobLaunch, ...]
    environment: Mapping[str, str | None]
    python: str
    jobs: str
    logs: str
    data_dir: str | None
    binds: tuple[str, ...] = ()
    shape: str = "jobs"
    walltime: str = ""
    request: JobRequest = field(default_factory=JobRequest)
    site: Site = field(default_factory=Site)


def render_script(template: str, script: JobScript, path: Callable[[str], str] = str) -> str:
    """Return the job script that `template` makes of `script`.

    `template` is a file of ``jobs/templates`` such as ``local.sh.j2``, or the path of a user's own, which may
    extend those. `path` writes a path as the scheduler's directives take it.

    Raises:
        UserError: the template is missing, has an error or uses a variable that `JobScript` does not have.
    """
    import jinja2

    folders = [resource(TEMPLATES)]
    name = template
    if "/" in template or not (resource(TEMPLATES) / template).exists():  # a user's own
        folders.insert(0, Path(template).parent)
        name = Path(template).name
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
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
        return environment.get_template(name).render(variables)
    except jinja2.TemplateNotFound as error:
        raise UserError(f"TEMPLATE={template} cannot be found: {error.name} is missing") from error
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"TEMPLATE={template} has an error in line {error.lineno}: {error.message}") from error
    except jinja2.UndefinedError as error:
        raise UserError(f"TEMPLATE={template} uses a variable that does not exist: {error.message}") from error


def check_directives(script: str, scheduler: Scheduler, template: str) -> None:
    """Refuse a script with directives that the scheduler would ignore or misread.

    Directives after the first command are ignored by sbatch and by qsub; CRLF line ends are part of a directive's
    value.

    Raises:
        UserError: naming the template, the line and the fix.
    """
    if not scheduler.directive:
        return
    if "\r" in script:
        raise UserError(f"TEMPLATE={template} has CRLF line ends: save it with LF ones")
    commands = False
    for number, line in enumerate(script.splitlines(), start=1):
        if line.startswith(scheduler.directive):
            wrong = scheduler.refuse_line(line)
            if commands:
                wrong = f"stands after the first command, where {scheduler.name} ignores it: move it up"
            if wrong:
                raise UserError(f"TEMPLATE={template}: line {number} of the script, '{line}', {wrong}")
        elif line.strip() and not line.startswith("#"):
            commands = True


def _words(words: tuple[str, ...]) -> str:
    """Return words quoted for the shell; a leading ``$jobs/`` stays the script's own variable."""
    return " ".join(
        f'"$jobs"/{shlex.quote(word.removeprefix("$jobs/"))}' if word.startswith("$jobs/") else shlex.quote(word)
        for word in words
    )
