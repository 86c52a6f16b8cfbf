"""Known wrong solutions: they test the checks, and they let the grader name a learner's misconception.

    python -m minibatcher.grading.mutants      runs all, and writes exercises/misconceptions.json

A mutant is a file that is laid over the solution, exercises/mutants/<exercise>/<name>.py. Its docstring has what to say
to a learner who did the same, and after `Fails:` the checks that must catch it.
"""

from __future__ import annotations

import ast
import functools
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minibatcher.grading.report import FAILED, CheckResult
from minibatcher.grading.runner import digest, run_check
from minibatcher.grading.submission import load
from minibatcher.grading.tasks import check_files, collect, find_exercises

SECONDS = 1.0  # an endless loop need not be waited for


@dataclass
class Mutant:
    exercise: str
    path: Path
    message: str
    fails: set[str]

    @classmethod
    def read(cls, path: Path) -> Mutant:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        message, _, fails = text.partition("Fails:")
        return cls(path.parent.name, path, " ".join(message.split()), set(fails.replace(",", " ").split()))


def mutants(exercises: Path) -> Iterator[Mutant]:
    for exercise in check_files(exercises):
        for path in sorted((exercises / "mutants" / exercise).glob("*.py")):
            yield Mutant.read(path)


Outcome = dict[str, tuple[str, CheckResult]]  # check -> its task's number, and how it went


def run(exercises: Path, exercise: str, *overlays: Path) -> Outcome:
    """All checks of the exercise on its solution, with files laid over it."""
    paths = (exercises / "solutions" / f"{exercise}.py", *overlays)
    return {
        check.name: (
            check.task.number,
            run_check(check, functools.partial(load, *paths), file=paths[-1].name, seconds=SECONDS),
        )
        for check in collect(exercises, exercise)
    }


def failed(outcome: Outcome) -> set[str]:
    return {name for name, (_, result) in outcome.items() if result.status == FAILED}


def misconceptions(outcomes: Iterable[tuple[Mutant, Outcome]]) -> dict[str, Any]:
    """Task -> check -> digest of what came -> what to say.

    Of several mutants that give the same, those that fail the fewest checks are named: their mistake is this one and
    no other. If that leaves more than two, too little is known, and nothing is said.
    """
    given: dict[tuple[str, str, str], list[Mutant]] = defaultdict(list)
    for mutant, outcome in outcomes:
        for name, (task, result) in outcome.items():
            if result.status == FAILED and result.failure and result.failure.kind == "wrong":
                given[task, name, digest(result.failure)].append(mutant)
    found: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for (task, name, key), those in given.items():
        fewest = min(len(mutant.fails) for mutant in those)
        messages = list(dict.fromkeys(mutant.message for mutant in those if len(mutant.fails) == fewest))
        if len(messages) <= 2:
            found[task][name][key] = " or ".join(messages)
    return {task: dict(checks) for task, checks in found.items()}


def main() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    exercises = find_exercises()
    outcomes = []
    for mutant in mutants(exercises):
        outcomes.append((mutant, run(exercises, mutant.exercise, mutant.path)))
        if failed(outcomes[-1][1]) != mutant.fails:
            print(f"{mutant.exercise}/{mutant.path.name} fails {', '.join(failed(outcomes[-1][1])) or 'nothing'}")
    path = exercises / "misconceptions.json"
    path.write_text(json.dumps(misconceptions(outcomes), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(outcomes)} mutants; wrote {path}")


if __name__ == "__main__":
    main()
