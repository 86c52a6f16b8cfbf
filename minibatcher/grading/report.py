"""What grading found, as data: the board, the files for instructors and the notebook are made from this alone."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from minibatcher.grading.checks import Task

PASSED, FAILED, TODO, SKIPPED = "passed", "failed", "todo", "skipped"
NOT_RUN = "not run"  # of a check that was not chosen, where only some of a task's are


@dataclass
class Failure:
    """kind: `wrong` (another value came), `error` (an exception), `time`, `died` (Python itself ended) or `load`.

    calls: what was called. where: file, line and source. printed: what the learner's code printed meanwhile.
    misconception: what a known wrong solution that gives the same got wrong.
    """

    kind: str
    sentence: str = ""
    calls: list[str] = field(default_factory=list)
    expected: str | None = None
    got: str | None = None
    picture: str = ""
    where: str = ""
    printed: str = ""
    misconception: str = ""


@dataclass
class CheckResult:
    name: str
    sentence: str
    status: str = TODO
    failure: Failure | None = None
    reason: str = ""  # why it was skipped
    seconds: float = 0.0


@dataclass
class TaskResult:
    """All of a task's checks, those too that did not run."""

    task: Task
    exercise: str  # the learner's file without its ending
    checks: list[CheckResult]
    hints: int = 0  # how many were asked for; recorded, and never penalised

    @property
    def passed(self) -> int:
        return sum(check.status == PASSED for check in self.checks)

    @property
    def not_run(self) -> int:
        return sum(check.status == NOT_RUN for check in self.checks)

    @property
    def score(self) -> int:
        """In proportion to the checks that pass, rounded down."""
        return self.task.points * self.passed // len(self.checks)

    @property
    def status(self) -> str:
        statuses = {check.status for check in self.checks} - {NOT_RUN}
        if len(statuses) == 1:
            return statuses.pop()
        return FAILED if FAILED in statuses else TODO  # TODO: begun, with some methods still to be written


@dataclass
class Report:
    """picture: what the learner's code does inside the engine, when an exercise is complete."""

    tasks: list[TaskResult]
    picture: str = ""
    version: str = ""
    seconds: float = 0.0

    @property
    def scored(self) -> list[TaskResult]:
        return [result for result in self.tasks if not result.task.bonus]

    @property
    def score(self) -> int:
        return sum(result.score for result in self.scored)

    @property
    def max_score(self) -> int:
        return sum(result.task.points for result in self.scored)

    def failures(self) -> Iterator[tuple[TaskResult, CheckResult]]:
        for result in self.tasks:
            for check in result.checks:
                if check.status == FAILED:
                    yield result, check

    def next_todo(self) -> TaskResult | None:
        return next((result for result in self.tasks if result.status == TODO), None)

    def to_dict(self) -> dict[str, Any]:
        totals = {"score": self.score, "max_score": self.max_score}
        return totals | asdict(self) | {"tasks": [asdict(result) | {"score": result.score} for result in self.tasks]}


# -- the board, in lines of text --------------------------------------------------------------------------------------

WORDS = {PASSED: "pass", FAILED: "FAIL", TODO: "todo", SKIPPED: "skip"}
WIDTH = 120
Line = tuple[str, str]  # text, and the status that colours it; "" for none


def board(report: Report) -> list[Line]:
    """A line a task, and the total; bonus tasks stand below it."""
    width = max((len(result.task.title) for result in report.tasks), default=0)
    lines = [(_row(result, width), result.status) for result in report.scored]
    if report.scored:
        lines.append((f"{'total':<{width + 13}} {f'{report.score}/{report.max_score}':>6}", ""))
    bonus = [result for result in report.tasks if result.task.bonus]
    if bonus:
        lines.append(("bonus, outside the total", ""))
        lines += [(_row(result, width), result.status) for result in bonus]
    return lines


def _row(result: TaskResult, width: int) -> str:
    task, remark = result.task, ""
    if result.not_run:
        chosen = len(result.checks) - result.not_run
        remark = f"{result.passed} of {chosen} selected checks pass ({result.not_run} not run)"
    elif result.status == FAILED or (result.status == TODO and result.passed):
        remark = f"{result.passed} of {len(result.checks)} checks"
    elif result.status == TODO:
        remark = f"about {task.minutes} minutes"
    elif result.status == SKIPPED:
        remark = result.checks[0].reason
    score = f"{result.score}/{task.points}"
    return f"{task.number:<5}{task.title:<{width}}  {WORDS[result.status]:<5} {score:>6}    {remark}".rstrip()


def expanded(result: TaskResult, check: CheckResult) -> list[Line]:
    """A failed check with all that helps to find the reason."""
    failure = check.failure or Failure("wrong")
    lines = [(f"{result.task.number} {result.task.title}: {check.sentence}", FAILED)]
    lines += [(f"    {line}", "") for line in failure.sentence.splitlines()]

    def put(label: str, text: str) -> None:
        if text:
            lines.append((_block(f"    {label:<9}", text), ""))

    for number, call in enumerate(failure.calls):
        put("" if number else "with", call)
    if failure.picture:
        lines += [(f"    {line}", "") for line in failure.picture.splitlines()]
    else:
        put("expected", failure.expected or "")
        put("got", failure.got or "")
    put("why", failure.misconception)
    put("at", failure.where)
    put("printed", failure.printed)
    lines.append((f'    run only this:  pytest exercises -k "{check.name}"', ""))
    lines.append(("    stuck?          add --hint", ""))
    return lines


def _block(label: str, text: str) -> str:
    """Long lines are cut, and further lines of the text stand under the first."""
    wrap = textwrap.TextWrapper(WIDTH - len(label), break_on_hyphens=False, subsequent_indent="  ").wrap
    lines = [part for line in text.splitlines() for part in (wrap(line) if len(line) > WIDTH else [line])]
    return label + f"\n{' ' * len(label)}".join(lines)


def as_lines(report: Report) -> list[Line]:
    """The board, the first failure in full, and what comes next. Only the first: the others often follow from it."""
    lines = board(report)
    failures = list(report.failures())
    if failures:
        lines += [("", ""), *expanded(*failures[0])]
        if more := len(failures) - 1:
            lines.append((f"    ({more} more check{'s' * (more > 1)} failed)", ""))
    elif (todo := report.next_todo()) and not any(result.not_run for result in report.tasks):
        lines += [("", ""), (f"next: {todo.task.number} {todo.task.title}, in exercises/{todo.exercise}.py", "")]
    if report.picture:
        lines += [("", ""), *((line, "") for line in report.picture.splitlines())]
    return lines


def as_text(lines: Iterable[Line]) -> str:
    return "\n".join(text for text, _ in lines)
