"""The module that a child process imports first: it marks the first step of an optimizer."""

import importlib
import sys
from types import SimpleNamespace

from harness.transparent.child import sitecustomize


class Optimizer:
    def apply(self, gradients):
        return gradients


def test_the_first_step_makes_the_file_and_later_ones_are_left_alone(tmp_path, monkeypatch):
    module = SimpleNamespace(BaseOptimizer=type("BaseOptimizer", (Optimizer,), {}))
    module.BaseOptimizer.apply = original = Optimizer.apply
    monkeypatch.setitem(sys.modules, sitecustomize.OPTIMIZERS, module)
    mark = tmp_path / "mark"
    sitecustomize.watch(str(mark))
    assert not mark.exists()
    assert module.BaseOptimizer().apply([1]) == [1]
    assert mark.exists()
    assert module.BaseOptimizer.apply is original


def test_an_optimizer_that_is_imported_later_is_watched_too(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sitecustomize, "OPTIMIZERS", "late_optimizers")
    source = "class BaseOptimizer:\n    def apply(self, gradients):\n        return gradients\n"
    (tmp_path / "late_optimizers.py").write_text(source)
    mark = tmp_path / "mark"
    sitecustomize.watch(str(mark))
    module = importlib.import_module("late_optimizers")
    assert module.BaseOptimizer().apply([2]) == [2]
    assert mark.exists()
