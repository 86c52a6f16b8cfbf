"""Three hints a task, in exercises/hints: a question that names the invariant, a worked case, pseudo-code with a blank.

The first one belongs to a check, so that it asks about what failed. A file looks like this:

    ## 1.1
    ### where to begin
    ### test_positions_start_after_padding
    ### a worked case
    ### pseudo-code
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from minibatcher.grading.report import TODO, Line, Report

BEGIN, CASE, CODE = "where to begin", "a worked case", "pseudo-code"
MEMORY = ".hints.json"  # how many hints were asked for


def read(exercises: Path) -> dict[str, dict[str, str]]:
    """Task -> title of the hint -> its text."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((exercises / "hints").glob("*.md")):
        for section in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
            number, *parts = re.split(r"^### ", section, flags=re.M)
            pairs = (part.partition("\n") for part in parts)
            found[number.split()[0]] = {title.strip(): text.strip("\n").rstrip() for title, _, text in pairs}
    return found


def next_hint(exercises: Path, report: Report) -> list[Line]:
    """One more hint for the first failed check, or for the task that comes next. Notes that it was asked for."""
    failed = next(report.failures(), None)
    result = failed[0] if failed else report.next_todo()
    if result is None:
        return [("nothing fails, so there is nothing to hint at", "")]
    texts = read(exercises).get(result.task.number, {})
    first = failed[1].name if failed and failed[1].name in texts else BEGIN
    titles = [title for title in (first, CASE, CODE) if title in texts]
    if not titles:
        return [(f"there are no hints for {result.task.number}", "")]

    path = exercises / MEMORY
    asked = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    key = f"{result.task.number} {first}"
    before = asked.get(key, 0)
    level = min(before, len(titles) - 1)
    asked[key] = before + 1
    path.write_text(json.dumps(asked, indent=1), encoding="utf-8")

    lines = [(f"hint {level + 1} of {len(titles)} for {result.task.number} {result.task.title}", TODO), ("", "")]
    lines += [(f"    {line}".rstrip(), "") for line in texts[titles[level]].splitlines()]
    if before >= len(titles):
        lines += [("", ""), ("    There are no more hints: this is the last one again.", "")]
    elif level + 1 < len(titles):
        lines += [("", ""), ("    more?          --hint again", "")]
    return lines


def count(exercises: Path, report: Report) -> None:
    """Writes into the report how many hints each task took."""
    path = exercises / MEMORY
    asked: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for result in report.tasks:
        result.hints = sum(times for key, times in asked.items() if key.split()[0] == result.task.number)
