"""A check of a script's directives, for what the schedulers accept without a word and then do not do."""

import re

from harness.errors import UserError

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
