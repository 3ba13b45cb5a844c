"""The command that gives a sweep's launches again, and a name that says how one study differs from another."""

import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import Field
from typing import Any

from harness.schema.layout import Layout
from harness.schema.option import Option, options
from harness.schema.presets import resolve
from harness.schema.sweep import Sweep
from harness.schema.workload import Workload, batch_mode, is_script, script_command

_NAMED = frozenset({"dataset", "model", "preset", "data_file"})  # told before all other settings
Words = list[tuple[str, object]]


def sweep_command(sweep: Sweep) -> str:
    """Return the ``make sweep`` command of `sweep`, a line for each part of its layouts that no single one gives."""
    training = _script(sweep.workload) if is_script(sweep.workload) else _training(sweep.workload)
    training += [("SCALING", sweep.scaling)] if sweep.scaling != "strong" else []
    last: Words = [("REPEATS", sweep.repeats)]
    last += [(name, 1) for name, on in (("OVERSUBSCRIBE", sweep.oversubscribe), ("TUNED", sweep.settings)) if on]
    return "\n".join(_line([*training, *part, *last]) for part in _layouts(sweep.layouts))


def study_name(sweep: Sweep) -> str:
    """Return what is studied with every setting that is not its preset's: ``MNIST-DNN, synchronisation none``."""
    workload = sweep.workload
    words = [workload.name if workload.data_file else workload.name.upper()]
    if is_script(workload):
        words += [shlex.join(script_command(workload)[1]), "" if workload.sync == "gradients" else workload.sync]
    else:
        words += [f"preset {workload.preset}" if workload.preset != "default" else ""]
        for field, asked in filter(_counts, _changed(workload)):
            words.append(f"{_title(field.name, asked)} {told(getattr(workload, field.name))}")
    words += ["weak scaling" if sweep.scaling == "weak" else "", "oversubscribed" if sweep.oversubscribe else ""]
    return ", ".join(filter(None, [*words, "tuned sums" if sweep.settings else ""]))


def names_apart(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """Return a name for each of `workloads` that says only what differs among them: ``weights:epoch``, ``epochs 5``.

    A value stands alone where a single setting differs and its values are words. Empty texts where none does.
    """
    apart = [
        (field, asked)
        for field, asked in filter(_counts, options(Workload))
        if len({getattr(w, field.name) for w in workloads}) > 1
    ]
    alone = len(apart) == 1 and all(isinstance(getattr(w, apart[0][0].name), str) for w in workloads)
    found = []
    for workload in workloads:
        words = [(_title(field.name, asked), told(getattr(workload, field.name))) for field, asked in apart]
        found.append(", ".join(value if alone else f"{title} {value}" for title, value in words))
    return tuple(found)


def _counts(one: tuple[Field[Any], Option]) -> bool:
    return one[0].compare


def _title(name: str, asked: Option) -> str:
    title = (asked.title or name.replace("_", " ")).removesuffix(" over all ranks")
    return f"{title[0].lower()}{title[1:]}"


def told(value: object) -> str:
    """Return a setting's value as a reader is told it."""
    return "not set" if value is None else f"{value:,}" if type(value) is int else str(value)


def _changed(workload: Workload) -> Iterator[tuple[Field[Any], Option]]:
    """Yield the fields whose values are not those of the workload's preset."""
    usual = resolve(
        dataset=workload.dataset, model=workload.model, preset=workload.preset, global_batch=workload.global_batch
    )
    for field, asked in options(Workload):
        value = getattr(workload, field.name)
        given = field.name == "global_batch" or value != getattr(usual, field.name)
        if field.name not in _NAMED and value is not None and given:
            yield field, asked


def _training(workload: Workload) -> Words:
    found: Words = [("DATA", workload.data_file)] if workload.data_file else [("DATASET", workload.dataset)]
    found += [("MODEL", workload.model)]
    found += [("PRESET", workload.preset)] if workload.preset != "default" else []
    for field, asked in _changed(workload):
        found.append(((asked.name or field.name).replace("-", "_").upper(), getattr(workload, field.name)))
    return found


def _script(workload: Workload) -> Words:
    script, arguments = script_command(workload)
    found: Words = [("SCRIPT", script)]
    found += [("SCRIPT_ARGUMENTS", shlex.join(arguments))] if arguments else []
    found += [("SCRIPT_BATCH", "global")] if batch_mode(workload) == "global" else []
    found += [("SYNC", workload.sync)] if workload.sync != "gradients" else []
    return found + ([("NOTE", workload.note)] if workload.note else [])


def _line(words: Iterable[tuple[str, object]]) -> str:
    """Return a command line for a shell; make takes a dollar from two."""
    texts = ((name, str(int(value)) if isinstance(value, bool) else str(value)) for name, value in words)
    return " ".join(["make sweep", *(f"{name}={shlex.quote(text.replace('$', '$$'))}" for name, text in texts)])


def _layouts(layouts: Sequence[Layout]) -> Iterator[Words]:
    """Yield the settings that give `layouts`, see `harness.sweep.plan.combine`."""
    left = list(layouts)
    uneven = [layout for layout in layouts if layout.gpus_per_rank or layout.last_node]
    for kind in dict.fromkeys((one.threads, one.gpus_per_rank, one.shares) for one in uneven):
        same = [one for one in left if (one.threads, one.gpus_per_rank, one.shares) == kind]
        per_node = max(one.ranks_per_node for one in same)
        filled = [one for one in same if one.ranks_per_node == min(one.ranks, per_node)]
        left = [one for one in left if one not in filled]
        gpus = kind[1]
        units = [one.ranks if gpus else one.cores for one in filled]
        yield [("GPUS" if gpus else "CORES", _list(units)), *_per_rank([per_node], [kind[0]], kind[2], always=True)]
    groups: dict[tuple[int, int, tuple[int, ...] | None], list[int]] = {}
    parts = next((one.shares for one in left if one.shares), None)
    for one in left:  # a single rank has no parts, whatever is asked for
        key = (one.ranks_per_node, one.threads, parts if one.ranks == 1 else one.shares)
        groups.setdefault(key, []).append(one.nodes)
    per_node_counts, threads = {per_node for per_node, _, _ in groups}, {count for _, count, _ in groups}
    product = set(itertools.product(per_node_counts, threads, [None]))
    if len(groups) > 1 and set(groups) == product and len({frozenset(nodes) for nodes in groups.values()}) == 1:
        nodes = next(iter(groups.values()))
        yield [("NODES", _list(nodes)), *_per_rank(sorted(per_node_counts), sorted(threads), None)]
        return
    for (per_node, count, shares), nodes in groups.items():
        yield [("NODES", _list(nodes)), *_per_rank([per_node], [count], shares)]


def _per_rank(
    per_node: Sequence[int], threads: Sequence[int], shares: tuple[int, ...] | None, *, always: bool = False
) -> Words:
    found: Words = [("RANKS_PER_NODE", _list(per_node))] if always or list(per_node) != [1] else []
    found += [("THREADS", _list(threads))] if list(threads) != [1] else []
    return found + ([("SHARES", ":".join(map(str, shares)))] if shares else [])


def _list(counts: Iterable[int]) -> str:
    return ",".join(map(str, sorted(set(counts))))
