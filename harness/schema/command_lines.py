"""The ``harness sweep`` command lines that give a sweep again."""

import contextlib
import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.base.record_words import LINE, shell_line
from harness.base.secret_text import secrets_in_arguments
from harness.schema.layout import Layout
from harness.schema.option import Option, options
from harness.schema.presets import changed_settings, usual_scaling
from harness.schema.sweep import Sweep
from harness.schema.sweep_folder import SweepFolder
from harness.schema.workload import OF_ALL_RANKS, UserScript, Workload

Words = list[tuple[str, object]]
"""Settings of a command by their names in capitals, BATCH_PER_RANK; a value of True or False is a switch."""


def harness_command(sweep: Sweep, more: Iterable[tuple[str, object]] = ()) -> str:
    """Return the ``harness sweep`` command of `sweep` with `more` settings, a line for each part of its layouts."""
    return "\n".join(_harness_line([*words, *more]) for words in sweep_words(sweep))


def repeat_command(folder: Path, sweep: Sweep) -> str:
    """Return the lines that repeat `sweep`, with the folder of the originals that `folder` was given."""
    data_dir = recorded_data_dir(folder)
    return harness_command(sweep, [("DATA_DIR", data_dir)] if data_dir else [])


def recorded_data_dir(folder: Path) -> str:
    """Return the folder of the originals that the sweep in `folder` was given; empty for none: the cache has them."""
    data_dir = None
    with contextlib.suppress(OSError, msgspec.DecodeError):
        content = SweepFolder(folder).submission.read_bytes()
        data_dir = msgspec.json.decode(content, type=dict[str, Any]).get("data_dir")
    return data_dir if isinstance(data_dir, str) and LINE.fits(data_dir) else ""


def changed_values(settings: Any, usual: Any) -> Iterator[tuple[str, Any, Option]]:
    """Yield name and value of every setting of a dataclass that differs from its value in `usual`, and the option."""
    for field, asked in options(type(settings)):
        value = getattr(settings, field.name)
        if value != getattr(usual, field.name):
            yield asked.name or field.name, value, asked


def changed_words(settings: Any, usual: Any) -> Words:
    """Return the words of every setting of a dataclass that differs from its value in `usual`."""
    words: Words = []
    for name, value, asked in changed_values(settings, usual):
        if value is False and asked.opposite:
            words.append((asked.opposite, True))
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [(name, part) for part in values]
    return words


def sweep_words(sweep: Sweep) -> Iterator[Words]:
    """Yield the settings that give `sweep`, once for each part of its layouts that no single command gives."""
    workload = sweep.workload
    training = _script_words(workload.script, workload) if workload.script else _training_words(workload)
    if sweep.scaling != usual_scaling(workload.preset):
        training.append(("SCALING", sweep.scaling))
    last: Words = [("REPEATS", sweep.repeats)]
    if sweep.oversubscribe:
        last.append(("OVERSUBSCRIBE", True))
    if sweep.settings:
        last.append(("TUNED", True))
    for layout_words in _layout_words(sweep.layouts):
        yield [*training, *layout_words, *last]


def _training_words(workload: Workload) -> Words:
    words: Words = [("DATA", workload.own_file)] if workload.own_file else [("DATASET", workload.dataset)]
    words.append(("MODEL", workload.model))
    if workload.preset != "default":
        words.append(("PRESET", workload.preset))
    for field, asked in changed_settings(workload):
        name = (asked.name or field.name).replace("-", "_").upper()
        words.append((name, getattr(workload, field.name)))
    return words


def _script_words(script: UserScript, workload: Workload) -> Words:
    words: Words = [("SCRIPT", script.path)]
    if script.arguments:
        words.append(("SCRIPT_ARGUMENTS", shlex.join(script.arguments)))
        words += [("ALLOW_ARGUMENT", name) for name in dict.fromkeys(secrets_in_arguments(script.arguments))]
    if script.batch == OF_ALL_RANKS:
        words.append(("SCRIPT_BATCH", script.batch))
    elif workload.batch_per_rank != 1:
        words.append(("SCRIPT_BATCH", workload.batch_per_rank))
    if workload.sync != "gradients":
        words.append(("SYNC", workload.sync))
    if workload.own_rate:
        words.append(("OWN_RATE", workload.own_rate))
    if workload.shared_files:
        words.append(("SHARED_FILES", True))
    if workload.note:
        words.append(("NOTE", workload.note))
    return words


def _harness_line(words: Words) -> str:
    line = ["harness", "sweep"]
    for name, value in words:
        option = name.lower().replace("_", "-")
        if isinstance(value, bool):
            line.append(f"--{option}" if value else f"--no-{option}")
        else:
            line.append(f"--{option}={value}")
    return shell_line(line)


def _layout_words(layouts: Sequence[Layout]) -> Iterator[Words]:
    """Yield the settings that give `layouts`, see `harness.sweep.plan.combine`."""
    left = list(layouts)
    while uneven := [layout for layout in left if layout.gpus_per_rank or layout.last_node]:
        filled = _filled_alike(uneven[0], left)
        left = [layout for layout in left if layout not in filled]
        yield _units_words(uneven[0], filled)
    yield from _nodes_words(left)


def _filled_alike(layout: Layout, layouts: Sequence[Layout]) -> list[Layout]:
    """Return those of `layouts` that fill their nodes as `layout` does: with as many ranks a node, or all on one."""
    kind = (layout.threads, layout.gpus_per_rank)
    same = [peer for peer in layouts if (peer.threads, peer.gpus_per_rank) == kind]
    per_node = max(peer.ranks_per_node for peer in same)
    return [peer for peer in same if peer.ranks_per_node == min(peer.ranks, per_node)]


def _units_words(layout: Layout, filled: Sequence[Layout]) -> Words:
    """Return the settings of `filled` by their cores or GPUs over all nodes."""
    name = "GPUS" if layout.gpus_per_rank else "CORES"
    units = [peer.ranks if layout.gpus_per_rank else peer.cores for peer in filled]
    per_node = max(peer.ranks_per_node for peer in filled)
    return [(name, _list(units)), *_rank_words([per_node], [layout.threads], always=True)]


def _nodes_words(layouts: Sequence[Layout]) -> Iterator[Words]:
    """Yield the settings of layouts by their nodes: one where they are all combinations of some counts."""
    nodes_by_kind: dict[tuple[int, int], list[int]] = {}
    for layout in layouts:
        nodes_by_kind.setdefault((layout.ranks_per_node, layout.threads), []).append(layout.nodes)
    per_node_counts = sorted({per_node for per_node, _ in nodes_by_kind})
    thread_counts = sorted({threads for _, threads in nodes_by_kind})
    product = set(itertools.product(per_node_counts, thread_counts))
    same_nodes = len({frozenset(nodes) for nodes in nodes_by_kind.values()}) == 1
    if len(nodes_by_kind) > 1 and set(nodes_by_kind) == product and same_nodes:
        nodes = next(iter(nodes_by_kind.values()))
        yield [("NODES", _list(nodes)), *_rank_words(per_node_counts, thread_counts)]
        return
    for (per_node, threads), nodes in nodes_by_kind.items():
        yield [("NODES", _list(nodes)), *_rank_words([per_node], [threads])]


def _rank_words(per_node: Sequence[int], threads: Sequence[int], *, always: bool = False) -> Words:
    words: Words = []
    if always or list(per_node) != [1]:
        words.append(("RANKS_PER_NODE", _list(per_node)))
    if list(threads) != [1]:
        words.append(("THREADS", _list(threads)))
    return words


def _list(counts: Iterable[int]) -> str:
    return ",".join(map(str, sorted(set(counts))))
