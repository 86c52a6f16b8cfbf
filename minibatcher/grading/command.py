"""`minibatcher grade`, behind the command line's few lines."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from minibatcher.grading import formats, hints, release
from minibatcher.grading.report import FAILED, PASSED, SKIPPED, TODO, as_lines
from minibatcher.grading.supervise import grade
from minibatcher.grading.tasks import find_exercises

STYLES = {PASSED: "green", FAILED: "bold red", TODO: "dim", SKIPPED: "dim"}


def run(
    console: Console,
    what: str | None,
    hint: bool,
    grade_json: Path | None,
    grade_format: str,
    exercises: Path | None,
    submission: Path | None,
    release_to: Path | None,
) -> int:
    """Print the board. Returns 1 when a check fails, else 0: what is not begun is no failure.

    Raises ValueError for a folder, a format or a task that does not exist.
    """
    if grade_format not in formats.FORMATS:
        raise ValueError(f"--grade-format {grade_format!r} is unknown: choose from {', '.join(formats.FORMATS)}")
    for folder in (exercises, submission):
        if folder is not None and not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
    exercises = find_exercises(exercises)
    if release_to is not None:
        for line in release.release(exercises, release_to):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return 0
    if submission is not None and (submission / "exercises").is_dir():  # the whole course was handed in
        submission = submission / "exercises"
    with console.status("grading") as status:
        report = grade(exercises, what, submission, progress=lambda title: status.update(f"grading: {title}"))
    lines = as_lines(report)
    if hint:
        lines += [("", ""), *hints.next_hint(exercises, report)]
    hints.count(exercises, report)
    for text, state in lines:
        console.print(Text(text, STYLES.get(state, "")), soft_wrap=True)
    if grade_json is not None:
        formats.write(report, grade_json, grade_format)
    return 1 if any(report.failures()) else 0
