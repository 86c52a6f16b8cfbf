"""The report in the formats of those who collect grades."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minibatcher.grading.report import FAILED, PASSED, Report, TaskResult, as_text, expanded

FORMATS = ("plain", "gradescope")


def write(report: Report, path: Path, format: str) -> None:
    """Raises ValueError for a format that does not exist."""
    if format not in FORMATS:
        raise ValueError(f"grade-format {format!r} is unknown: choose from {', '.join(FORMATS)}")
    data = gradescope(report) if format == "gradescope" else report.to_dict()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")


def gradescope(report: Report) -> dict[str, Any]:
    """Gradescope's results.json: a test a task. Bonus points stand beside the score, and are not added to it."""
    return {
        "score": report.score,
        "output": f"{report.score} of {report.max_score} points, graded by minibatcher {report.version}",
        "tests": [_test(result) for result in report.tasks],
    }


def _test(result: TaskResult) -> dict[str, Any]:
    task = result.task
    failures = [expanded(result, check) for check in result.checks if check.status == FAILED]
    lines = [f"{result.passed} of {len(result.checks)} checks"] + ([f"{result.hints} hints"] if result.hints else [])
    return {
        "name": f"{task.number} {task.title}{' (bonus)' if task.bonus else ''}",
        "number": task.number,
        "score": result.score,
        # Of a bonus that this machine cannot run nothing is lost.
        "max_score": 0 if task.bonus else task.points,
        "status": "passed" if result.status == PASSED else "failed",
        "output": "\n\n".join([", ".join(lines), *map(as_text, failures)]),
        "tags": [result.exercise, "bonus" if task.bonus else "scored"],
        "visibility": "visible",
    }
