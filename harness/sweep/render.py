"""Job scripts from the templates in ``jobs/templates``, and a check of their directives."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.base.errors import UserError
from harness.base.files import resource
from harness.schema.layout import Layout
from harness.sweep.job_options import Request
from harness.sweep.schedulers import Launcher
from harness.sweep.site import Site

_PREFIX = {"slurm": "#SBATCH", "pbs": "#PBS"}
# qsub(1B) of OpenPBS 23.06 and the resources of pbs_resources(7B) that a job of ours may ask for.
_PBS_OPTIONS = "aAcCehIjJklmMNopPqrRSuvVWz"
_OLD = re.compile(r"\b(ppn|nodes)=")


def check_directives(script: str, scheduler: str, template: str) -> None:
    """Refuse a script with directives that the scheduler would ignore or misread.

    Directives after the first command are ignored by sbatch and by qsub; CRLF line ends are part of a
    directive's value; OpenPBS takes the old ``nodes=2:ppn=2`` and gives something else beside `place`.

    Raises:
        UserError: naming the template, the line and the fix.
    """
    prefix = _PREFIX.get(scheduler)
    if prefix is None:
        return
    if "\r" in script:
        raise UserError(f"TEMPLATE={template} has CRLF line ends: save it with LF ones")
    commands = False
    for number, line in enumerate(script.splitlines(), start=1):
        if line.startswith(prefix):
            if commands:
                raise UserError(
                    f"TEMPLATE={template}: line {number} of the script, '{line}', stands after the first command, "
                    f"where {scheduler} ignores it: move it up"
                )
            if scheduler == "pbs":
                _check_pbs(line, number, template)
        elif line.strip() and not line.startswith("#"):
            commands = True


def _check_pbs(line: str, number: int, template: str) -> None:
    where = f"TEMPLATE={template}: line {number} of the script, '{line}',"
    words = line.split()
    if len(words) < 2 or not re.fullmatch(r"-[A-Za-z]", words[1]) or words[1][1] not in _PBS_OPTIONS:
        raise UserError(f"{where} is no option of qsub: write one letter, such as #PBS -l")
    if words[1] == "-l" and _OLD.search(" ".join(words[2:])):
        raise UserError(f"{where} asks for nodes in the old way: write select=2:ncpus=4:mpiprocs=4")


TEMPLATES = "jobs/templates"


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One point of a job. `name` is its folder's name; `launcher` starts its ranks."""

    name: str
    layout: Layout
    launcher: Launcher
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


def render(template: str, script: Script) -> str:
    """Return the job script that `template` makes of `script`.

    `template` is a file of ``jobs/templates`` such as ``local.sh.j2``, or the path of a user's own, which may
    extend those.

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
    environment.filters["directive"] = _directive
    environment.filters["plain"] = _plain
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


def _directive(path: str) -> str:
    """Return a path for a quoted ``#SBATCH --output=``, where ``%`` begins a pattern.

    Raises:
        UserError: the path holds what such a line cannot.
    """
    if any(sign in path for sign in '"\\\n'):
        raise UserError(f"RESULTS '{path}' has a quote or backslash: Slurm cannot write there, choose another folder")
    return path.replace("%", "%%")


def _plain(path: str) -> str:
    """Return a path for a PBS directive.

    Raises:
        UserError: the path holds blanks or signs that qsub splits at.
    """
    if not re.fullmatch(r"[\w./+@%=-]+", path):
        raise UserError(f"RESULTS '{path}' has a blank or sign that PBS cannot write to: choose another folder")
    return path
