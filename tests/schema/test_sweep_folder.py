"""Where everything of a sweep lies: one class has the names."""

import ast
from pathlib import Path

from harness.schema.sweep_folder import LaunchFolder, SweepFolder

ROOT = Path(__file__).parents[2]


def test_no_other_module_knows_the_names_of_files() -> None:
    files = SweepFolder(Path("sweep"))
    launch = files.launch("n1")
    named = [getattr(files, name) for name, value in vars(SweepFolder).items() if isinstance(value, property)]
    names = {path.name for path in (*named, launch.record, launch.steps) if isinstance(path, Path) and path.suffix}
    assert {"run.json", "steps.parquet", "sweep.json", "submission.json", "accounts.json"} <= names
    strangers = []
    for path in (ROOT / "harness").rglob("*.py"):
        if path.name != "sweep_folder.py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and node.value in names:
                    strangers.append(f"{path}:{node.lineno} {node.value}")
    assert strangers == []


def test_checkpoints_of_a_launch_are_beside_all_records(tmp_path: Path) -> None:
    launch = LaunchFolder(tmp_path / "n1")
    assert launch.checkpoints == SweepFolder(tmp_path).checkpoints / "n1"
    launch.checkpoints.mkdir(parents=True)
    (launch.checkpoints / "000001-000000002.ckpt").touch()
    assert launch.has_checkpoint and not launch.is_recorded
    launch.forget_checkpoints()
    assert not SweepFolder(tmp_path).checkpoints.exists()
