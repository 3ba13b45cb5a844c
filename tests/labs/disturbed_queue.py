"""A queue that loses answers, answers late or in part, hides jobs, and kills the command that submits.

Its answers are those of the double `fake_queue`, called in this process. Time is virtual: jobs go on, end and are
forgotten where somebody sleeps. What it knows is in its folder, so that the next command finds it after a kill.
"""

import contextlib
import io
import json
import os
import random
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.base.processes import Reply

LAUNCH = re.compile(r"n\d+x\d+x\d+-r\d+-[0-9a-f]{12}")
_LATE_S = 10.0  # at most until a job is queued whose submission command has ended
_HIDDEN_S = 200.0  # at most that a job is not listed whose number is known
_HIDDEN_NAMELESS_S = 3.0
_SUBMISSIONS = (
    *(["ok"] * 12),
    *("accept, lost", "lost", "no number", "late, lost", "accept, hang", "hang", "full"),
    *("kill", "late, kill", "accept, kill"),
)


class DisturbedQueue:
    """The queue in `folder`, whose moods are drawn from `chance`; it is the time of the command too."""

    def __init__(self, folder: Path, double: ModuleType, results: Path, chance: random.Random) -> None:
        self._folder = folder
        self._double = double
        self._results = results
        self._chance = chance
        self._left = chance.randint(3, 60)
        self._facts: dict[str, Any] = {"now": 0.0, "late": [], "hidden": {}, "launches": {}, "doubles": [], "said": {}}
        with contextlib.suppress(FileNotFoundError):
            self._facts = json.loads((folder / "facts.json").read_text())

    @property
    def doubles(self) -> list[str]:
        """Launches that were accepted while another job of theirs was alive."""
        return list(self._facts["doubles"])

    @property
    def said(self) -> dict[str, int]:
        """How often what was done, by its name."""
        return dict(self._facts["said"])

    def monotonic(self) -> float:
        """Return the virtual seconds."""
        return float(self._facts["now"])

    def sleep(self, seconds: float) -> None:
        """Let time pass and jobs go on; now and then the command is killed, or Ctrl-C is pressed."""
        self._facts["now"] += seconds
        self._accept_late()
        for number, job in self._jobs().items():
            self._go_on(number, job)
        self._left -= 1
        self.kill_perhaps(0.01)
        if self._left <= 0:
            raise KeyboardInterrupt

    def kill_perhaps(self, share: float) -> None:
        """Kill this process with a probability of `share`."""
        if self._chance.random() < share:
            self._kill("kill at any time")

    def run(self, words: Sequence[str], **_: object) -> Reply:
        """Answer a scheduler's command."""
        submits = words[0] in ("sbatch", "qsub") or tuple(words[:2]) == ("flux", "batch")
        if submits:
            return self._submit(words[0], Path(words[-1]))
        mood = self._chance.random()
        if mood < 0.06:
            return Reply(code=None, out="", err=f"{words[0]} gave no answer")
        if mood < 0.10:
            return Reply(code=1, out="", err=f"{words[0]}: error: Unable to contact the controller")
        reply = self._answer(words)
        if mood < 0.13:
            return Reply(code=reply.code, out=reply.out[: self._chance.randrange(len(reply.out) + 1)], err=reply.err)
        return reply

    def _answer(self, words: Sequence[str]) -> Reply:
        out, err = io.StringIO(), io.StringIO()
        code: object = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                self._double.answer(words[0], *words[1:])
            except SystemExit as ended:
                code = ended.code
        return Reply(code=int(str(code)), out=out.getvalue(), err=err.getvalue())

    def _submit(self, command: str, script: Path) -> Reply:
        what = self._chance.choice(_SUBMISSIONS)
        self._count(f"submission: {what}")
        lost = Reply(code=1, out="", err=self._double.LOST[command])
        number = self._accept(command, script) if what.startswith(("ok", "accept", "no number")) else ""
        if what.startswith("late"):
            at = self._facts["now"] + self._chance.uniform(0, _LATE_S)
            self._facts["late"].append([at, command, str(script)])
        if what.endswith("kill"):
            self._kill("kill while submitting")
        if what.endswith("hang"):
            return Reply(code=None, out="", err=f"{command} gave no answer")
        if what.endswith("lost"):
            return lost
        if what == "full":
            full = {"sbatch": "MaxJobCount limit reached", "qsub": "Maximum number of jobs", "flux": "max jobs"}
            return Reply(code=1, out="", err=full[command])
        return Reply(code=0, out="" if what == "no number" else f"{number}\n", err="")

    def _accept(self, command: str, script: Path) -> str:
        """Queue a job, and note launches of it that another living job has too."""
        identifier = str(self._double.accept(command, script.read_text()))
        number = re.match(r"\d+", identifier)[0]  # type: ignore[index]
        blocks = script.with_suffix(".json") if script.stem.startswith("block-") else script
        launches = set(LAUNCH.findall(script.read_text() + blocks.read_text()))
        for other, job in self._jobs().items():
            if other != number and job["state"] not in ("ended", "forgotten"):
                twice = launches & set(self._facts["launches"][other]["names"])
                self._facts["doubles"] += [f"{name} in jobs {other} ({job['state']}) and {number}" for name in twice]
        self._facts["launches"][number] = {"names": sorted(launches), "folder": str(script.parent)}
        return identifier

    def _accept_late(self) -> None:
        for late in list(self._facts["late"]):
            at, command, script = late
            if at <= self._facts["now"]:
                self._facts["late"].remove(late)
                self._accept(command, Path(script))

    def _jobs(self) -> dict[str, dict[str, Any]]:
        paths = (self._folder / "jobs").glob("*.json")
        return {path.stem: json.loads(path.read_text()) for path in sorted(paths)}

    def _go_on(self, number: str, job: dict[str, Any]) -> None:
        """Let one job change its state, or hide it from all answers."""
        state = str(job["state"])
        hidden = self._facts["hidden"]
        mood = self._chance.random()
        if state == "hidden":
            if hidden[number][1] <= self._facts["now"]:
                self._set_state(number, job, hidden.pop(number)[0])
        elif state == "ended":
            if mood < 0.1:
                self._set_state(number, job, "forgotten")
        elif state != "forgotten" and mood < 0.08:
            known = any(f'"{number}' in path.read_text() for path in self._results.glob("*/running.json"))
            longest_s = _HIDDEN_S if known else _HIDDEN_NAMELESS_S
            hidden[number] = [state, self._facts["now"] + self._chance.uniform(0, longest_s)]
            self._set_state(number, job, "hidden")
        elif state == "queued" and mood < 0.2:
            self._set_state(number, job, "running")
        elif state == "running" and mood < 0.12:
            self._set_state(number, job, "strange")
        elif state == "strange" and mood < 0.3:
            self._set_state(number, job, "running")
        elif state == "running" and mood < 0.2:
            self._end(number, job)

    def _end(self, number: str, job: dict[str, Any]) -> None:
        """End a job, whose launches have left an exit code, or not where it was killed."""
        self._set_state(number, job, "ended")
        launches = self._facts["launches"][number]
        if self._chance.random() < 0.6:
            for name in launches["names"]:
                Path(launches["folder"], f"{name}.exit").write_text("3\n")

    def _set_state(self, number: str, job: dict[str, Any], state: str) -> None:
        self._count(f"job: {state}")
        path = self._folder / "jobs" / f"{number}.json"
        path.write_text(json.dumps(job | {"state": state}))

    def _count(self, name: str) -> None:
        self._facts["said"][name] = self._facts["said"].get(name, 0) + 1

    def _kill(self, name: str) -> None:
        self._count(name)
        self.save()
        os.kill(os.getpid(), signal.SIGKILL)

    def save(self) -> None:
        """Write down what it knows, for the next command."""
        (self._folder / "facts.json").write_text(json.dumps(self._facts))
