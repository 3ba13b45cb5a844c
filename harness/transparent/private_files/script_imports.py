"""What a script imports, as its text says it: nothing is run."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

_HOROVOD = "horovod"


def imports_horovod(script: Path) -> bool:
    """Tell whether a script, or a file beside it that it imports by name, imports Horovod whatever its arguments are.

    An import under an `if` is an option: where it is taken, Horovod's `init` has the script see its ranks from then on.
    """
    waiting = [script]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        names = set(_imported_names(file))
        if _HOROVOD in names:
            return True
        beside = [script.parent / f"{name}.py" for name in sorted(names)]
        waiting += [path for path in beside if path.is_file() and path not in seen]
    return False


def _imported_names(file: Path) -> Iterator[str]:
    """Yield the first names of the modules that a file imports; none of a file that is no Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError):  # Python says so when it runs the file
        return
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.If):
            names = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
            if names == {"__name__"}:  # if __name__ == "__main__"
                waiting += ast.iter_child_nodes(node)
        else:
            waiting += ast.iter_child_nodes(node)


def sees_ranks(script: Path, arguments: Sequence[str]) -> bool:
    """Tell whether the script, given these `arguments`, may see to its ranks itself, and so to their files."""
    return any("horovod" in word for word in arguments) or imports_horovod(script)
