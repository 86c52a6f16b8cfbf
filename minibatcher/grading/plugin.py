"""The exercises under pytest: the same checks and the same board.

    pytest exercises                       the board
    pytest exercises -k test_positions     some checks
    pytest exercises --hint                one more hint for what fails first

exercises/conftest.py imports these hooks; nothing else in pytest is changed.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from minibatcher.grading import formats, hints
from minibatcher.grading.report import (
    FAILED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    TODO,
    CheckResult,
    Report,
    TaskResult,
    as_lines,
    as_text,
    expanded,
)
from minibatcher.grading.runner import Loader, draw, load_misconceptions, run_check
from minibatcher.grading.supervise import version
from minibatcher.grading.tasks import Check, checks_of, find_exercises

RESULTS = pytest.StashKey[list[tuple[Check, CheckResult]]]()
LOADER = pytest.StashKey[Loader]()
COLOURS: dict[str, dict[str, bool]] = {PASSED: {"green": True}, FAILED: {"red": True}, TODO: {"light": True}}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("exercises")
    group.addoption("--hint", action="store_true", help="one more hint for the first check that fails")
    group.addoption("--grade-json", type=Path, metavar="FILE", help="write the report there")
    group.addoption("--grade-format", default="plain", choices=formats.FORMATS, help="plain is the default")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = []
    exercises = find_exercises(Path(__file__) if not config.args else Path(config.args[0].partition("::")[0]))
    config.stash[LOADER] = Loader(exercises)
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if all(exercises in [Path(arg).resolve(), *Path(arg).resolve().parents] for arg in config.args):
        # The board says all; pytest's own long reports would bury it.
        config.option.tbstyle, config.option.reportchars = "no", ""


@pytest.fixture
def ex() -> None:
    """The learner's file. `pytest_pyfunc_call` hands it to the check."""


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not hasattr(pyfuncitem.cls, "task"):
        return None
    loader = pyfuncitem.config.stash[LOADER]
    check = next(check for check in checks_of(pyfuncitem.module) if check.name == pyfuncitem.originalname)
    result = run_check(
        check,
        functools.partial(loader.names, check.exercise),
        file=f"{check.exercise}.py",
        misconceptions=load_misconceptions(loader.folder),
    )
    pyfuncitem.config.stash[RESULTS].append((check, result))
    if result.status == FAILED:
        task = TaskResult(check.task, check.exercise, [result])
        pytest.fail(as_text(expanded(task, result)), pytrace=False)
    if result.status in (TODO, SKIPPED):
        pytest.skip(result.reason or "todo")
    return True


def pytest_report_teststatus(report: pytest.TestReport) -> Any:
    """Not begun is not red, and not yellow either."""
    todo = report.skipped and isinstance(report.longrepr, tuple) and report.longrepr[2].endswith("todo")
    return ("todo", "-", ("TODO", {"light": True})) if todo else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    ran, loader = config.stash[RESULTS], config.stash[LOADER]
    if not ran:
        return
    report = Report(_tasks(ran), draw(ran, loader), version(loader.folder))
    lines = as_lines(report)
    if config.option.hint:
        lines += [("", ""), *hints.next_hint(loader.folder, report)]
    hints.count(loader.folder, report)
    if config.option.grade_json:
        formats.write(report, config.option.grade_json, config.option.grade_format)
    terminalreporter.write_line("")
    for text, status in lines:
        terminalreporter.write_line(text, **COLOURS.get(status, {}))


def _tasks(ran: list[tuple[Check, CheckResult]]) -> list[TaskResult]:
    """The tasks of which a check ran. The open challenge is no part of the board before it is begun."""
    results = {check.name: result for check, result in ran}
    tasks: dict[str, TaskResult] = {}
    for module in dict.fromkeys(f"test_{check.exercise}" for check, _ in ran):
        for check in checks_of(sys.modules[module]):
            if any(check.task.number == other.task.number for other, _ in ran):
                result = results.get(check.name, CheckResult(check.name, check.sentence, NOT_RUN))
                tasks.setdefault(check.task.number, TaskResult(check.task, check.exercise, [])).checks.append(result)
    begun = [result for result in tasks.values() if result.task.points or result.status != TODO]
    return begun or list(tasks.values())
