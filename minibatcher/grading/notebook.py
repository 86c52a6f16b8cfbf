"""`check("3.2")` in a notebook cell."""

from __future__ import annotations

from html import escape
from typing import Any

from minibatcher.grading.report import FAILED, PASSED, SKIPPED, TODO, CheckResult, Report, TaskResult, as_lines, as_text
from minibatcher.grading.runner import load_misconceptions, run_check
from minibatcher.grading.supervise import grade, version
from minibatcher.grading.tasks import collect, find_exercises, wanted

COLOURS = {PASSED: "#009E73", FAILED: "#D55E00", TODO: "gray", SKIPPED: "gray"}


class Board:
    """A report that shows itself in a notebook, and as text elsewhere."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __repr__(self) -> str:
        return as_text(as_lines(self.report))

    def _repr_html_(self) -> str:
        rows = (
            f'<span style="color:{COLOURS[status]}">{escape(text)}</span>' if status else escape(text)
            for text, status in as_lines(self.report)
        )
        return f'<pre style="line-height:1.3">{chr(10).join(rows)}</pre>'


def check(what: str | None = None, *solutions: Any) -> Board:
    """The board of a task or an exercise, from the files in exercises/, or from functions and classes of the notebook:

    check("3.2")                    what exercises/ex03_paged_memory.py has
    check("3.2", BlockAllocator)    what the cells above define
    """
    exercises = find_exercises()
    if not solutions:
        return Board(grade(exercises, what))
    names = {thing.__name__: thing for thing in solutions}
    known = load_misconceptions(exercises)
    tasks: dict[str, TaskResult] = {}
    for one in [one for name in wanted(exercises, what) for one in collect(exercises, name, what)]:
        result: CheckResult = run_check(one, lambda: names, file="this notebook", misconceptions=known)
        tasks.setdefault(one.task.number, TaskResult(one.task, one.exercise, [])).checks.append(result)
    return Board(Report(list(tasks.values()), version=version(exercises)))
