"""Finds the exercises, their tasks and their checks."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from minibatcher.grading.checks import Task

NUMBER = re.compile(r"(?:ex)?0?(\d+b?)(\.\d+)?")  # of an exercise, and of a task in it
NEEDS = {"triton": "needs Linux (Triton is made for it alone)"}


def find_exercises(start: Path | None = None) -> Path:
    """The folder `exercises`: here, above, or beside the package. Raises ValueError with what to do."""
    import minibatcher

    start = (start or Path.cwd()).resolve()
    beside_the_package = Path(minibatcher.__file__).resolve().parent.parent
    for folder in (start, *start.parents, beside_the_package):
        for candidate in (folder, folder / "exercises"):
            if (candidate / "tests").is_dir() and any(candidate.glob("ex0*.py")):
                return candidate
    raise ValueError(f"there is no folder `exercises` in {start} or above it: change to the course's folder")


@dataclass
class Check:
    task: Task
    exercise: str  # the learner's file without its ending
    function: Callable[[Any], None]
    name: str

    @property
    def sentence(self) -> str:
        return " ".join((self.function.__doc__ or self.name).split())


def check_files(exercises: Path) -> dict[str, Path]:
    """Exercise -> the file with its checks, in the order of the course."""
    return {path.stem.removeprefix("test_"): path for path in sorted((exercises / "tests").glob("test_*.py"))}


def number_of(name: str) -> str:
    """`ex00b_kv_cache` -> `0b`; `ex03`, `3` and `3.2` -> `3`; `open_challenge` -> `challenge`."""
    found = NUMBER.match(name.lower())
    return found[1] if found else name.rpartition("_")[2]


def wanted(exercises: Path, what: str | None = None) -> list[str]:
    """The exercises that `what` names, a task (3.2) or an exercise (ex03); None is all but the open challenge.

    Raises ValueError when there is none of that name.
    """
    names = list(check_files(exercises))
    if what is None:
        return [name for name in names if NUMBER.match(name)]
    found = [name for name in names if name == what] or [name for name in names if number_of(name) == number_of(what)]
    task = NUMBER.match(what.lower())
    if task and task[2]:
        tasks = {check.task.number: name for name in found for check in checks_of(check_module(exercises, name))}
        if found and task[1] + task[2] not in tasks:
            raise ValueError(f"there is no task {what!r}: exercise {task[1]} has {', '.join(tasks)}")
        found = [name for number, name in tasks.items() if number == task[1] + task[2]]
    if not found:
        known = ", ".join(dict.fromkeys(map(number_of, names)))
        raise ValueError(f"there is no exercise {what!r}: give a task such as 3.2, or an exercise of {known}")
    return found


def collect(exercises: Path, exercise: str, what: str | None = None) -> list[Check]:
    """The checks of one exercise; of one of its tasks, if that is what `what` names."""
    checks = list(checks_of(check_module(exercises, exercise)))
    task = NUMBER.match((what or "").lower())
    return [check for check in checks if not task or not task[2] or check.task.number == task[1] + task[2]]


@functools.cache
def check_module(exercises: Path, exercise: str) -> ModuleType:
    """The file with the exercise's checks; it may import its neighbours."""
    path = check_files(exercises)[exercise]
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checks_of(module: ModuleType) -> Iterator[Check]:
    exercise = module.__name__.removeprefix("test_")
    for cls in vars(module).values():
        if isinstance(cls, type) and "task" in vars(cls):
            for name in vars(cls):
                if name.startswith("test_"):
                    yield Check(cls.task, exercise, getattr(cls(), name), name)  # type: ignore[attr-defined]


def needed(task: Task) -> str:
    """Why the task cannot be graded on this machine; "" when it can."""
    missing = task.needs and importlib.util.find_spec(task.needs) is None
    return NEEDS.get(task.needs or "", f"needs {task.needs}") if missing else ""
