"""What `harness run` gives to its ranks."""

from pathlib import Path

from harness.cli.command_run import _command
from harness.sweep.launch_command import LaunchCommand


def test_every_setting_reaches_the_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    settings = {"threads": 1, "gpus_per_rank": 1, "hang_timeout": 0.0, "keep_rank_files": True, "record": None}
    words = _command(LaunchCommand(words=("mpirun", "-n", "2")), script, ["--epochs", "3"], settings)
    switches = words[5 : words.index(str(script))]
    assert sorted(switches) == ["--gpus-per-rank=1", "--hang-timeout=0.0", "--keep-rank-files", "--threads=1"]
    assert words[-2:] == ["--epochs", "3"]
    assert "--keep-rank-files" not in _command(
        LaunchCommand(words=()), script, [], settings | {"keep_rank_files": False}
    )
