"""The grader's own process: it starts the child that runs the learner's code, and makes the report whatever happens.

A child that dies is started again without the checks that are done; the check that was running has failed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minibatcher.grading.checks import Task
from minibatcher.grading.limits import SECONDS
from minibatcher.grading.report import FAILED, CheckResult, Failure, Report, TaskResult

SILENCE_S = 120.0  # without a word from the child: it sleeps, or waits inside a call that never returns


def grade(
    exercises: Path,
    what: str | None = None,
    folder: Path | None = None,
    *,
    seconds: float = SECONDS,
    silence: float = SILENCE_S,
    progress: Callable[[str], None] = lambda title: None,
) -> Report:
    """Grade the learner's files in `folder` (or those in `exercises`) with the checks of `exercises`.

    Only the files of the exercises are read from `folder`. seconds: of CPU time, for each check. progress: called with
    the title of each task that begins. Raises ValueError when `what` names nothing.
    """
    start = time.perf_counter()
    grading = Grading(version(exercises))
    while not grading.finished:
        child = Child(exercises, folder or exercises, what, grading.over, grading.done, seconds, silence)
        for event in child:
            if "refused" in event:
                raise ValueError(event["refused"])
            grading.hear(event)
            if "begins" in event:
                progress(grading.results[event["begins"]][0].task.title)
        if not grading.finished:
            grading.child_died(child)
    grading.report.seconds = time.perf_counter() - start
    return grading.report


class Grading:
    """What is known so far, from what the children tell."""

    def __init__(self, version: str) -> None:
        self.report = Report([], version=version)
        self.results: dict[str, tuple[TaskResult, CheckResult]] = {}  # by the check's name
        self.exercises: list[str] = []
        self.over: list[str] = []  # exercises, and
        self.done: list[str] = []  # checks that need not be run again
        self.running = self.loading = ""  # the check, and the exercise's file, at this moment
        self.stuck: Failure | None = None  # why the child had to end itself
        self.finished = False

    def hear(self, event: dict[str, Any]) -> None:
        match event:
            case {"exercises": exercises}:
                self.exercises = exercises
            case {"exercise": exercise, "checks": checks}:
                if not any(result.exercise == exercise for result in self.report.tasks):
                    self.open(exercise, checks)
            case {"begins": name}:
                self.running = name
            case {"ends": name, "result": result}:
                for field, value in result.items():
                    setattr(self.results[name][1], field, Failure(**value) if field == "failure" and value else value)
                self.done.append(name)
                self.running = ""
            case {"over": exercise}:
                self.over.append(exercise)
            case {"loading": exercise}:
                self.loading = exercise
            case {"stuck": why, "line": line}:
                self.stuck = Failure("time", why, where=line)
            case {"picture": picture}:
                self.report.picture = picture
            case {"finished": _}:
                self.finished = True

    def open(self, exercise: str, checks: list[Any]) -> None:
        """The exercise's tasks go into the report, still to do."""
        tasks: dict[str, TaskResult] = {}
        for task, name, sentence in checks:
            result = tasks.setdefault(task["number"], TaskResult(Task(**task), exercise, []))
            result.checks.append(CheckResult(name, sentence))
            self.results[name] = result, result.checks[-1]
        self.report.tasks += tasks.values()

    def child_died(self, child: Child) -> None:
        """The check that was running has failed, and with it those that would do the same: the others of a file that
        cannot be loaded, or of a task that does not answer."""
        if self.exercises and self.over == self.exercises:  # while it drew the picture
            self.finished = True
            return
        if not self.running:
            raise RuntimeError(f"the grader itself failed:\n{child.errors}")
        failure, task = self.stuck or child.failure(bool(self.loading)), self.results[self.running][0]
        for name, (other, check) in self.results.items():
            same = other.exercise == self.loading or (failure.kind == "time" and other is task)
            if name == self.running or (same and name not in self.done):
                check.status, check.failure = FAILED, failure
                self.done.append(name)
        self.running, self.loading, self.stuck = "", "", None


def version(exercises: Path) -> str:
    """The package's version, and a stamp of the checks: two reports with the same one were made by the same checks."""
    from minibatcher import __version__

    files = sorted((exercises / "tests").glob("*.py"))
    stamp = hashlib.sha256(b"".join(path.read_bytes().replace(b"\r\n", b"\n") for path in files))
    return f"{__version__}+{stamp.hexdigest()[:8]}"


class Child:
    """The process that runs the checks; iterating gives what it tells."""

    def __init__(
        self,
        exercises: Path,
        folder: Path,
        what: str | None,
        over: list[str],
        done: list[str],
        seconds: float,
        silence: float,
    ) -> None:
        # -P: nothing in the current folder is imported by accident.
        command = [sys.executable, "-P", "-m", "minibatcher.grading.child", str(exercises), str(folder)]
        command += [
            "--seconds",
            str(seconds),
            *(["--what", what] if what else []),
            *(["--done", *done] if done else []),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
        )
        self.silence, self.silent, self.errors = silence, False, ""

    def __iter__(self) -> Any:
        assert self.process.stdout is not None and self.process.stderr is not None
        reader = threading.Thread(target=self._read_errors, daemon=True)
        reader.start()
        timer = self._timer()
        try:
            for line in self.process.stdout:
                timer.cancel()
                timer = self._timer()
                try:
                    event = json.loads(line)
                except ValueError:  # cut short by the end of the process
                    continue
                yield event
        finally:
            timer.cancel()
            self.process.kill()
            self.process.wait()
            reader.join(1)

    def _timer(self) -> threading.Timer:
        timer = threading.Timer(self.silence, self._give_up)
        timer.daemon = True
        timer.start()
        return timer

    def _give_up(self) -> None:
        self.silent = True
        self.process.kill()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()[-4000:]

    def failure(self, loading: bool) -> Failure:
        """What to say of the check during which it died."""
        if self.silent:
            return Failure("time", f"it did not answer for {self.silence:.0f} s: does it sleep, or wait for something?")
        code, when = self.process.returncode, " while the file is loaded" if loading else ""
        return Failure("died", f"the code ends Python{when} (exit code {code}): os._exit, or a crash below Python")
