"""Runs the checks in a process of its own, since a learner's code may end it, and tells what it finds in JSON lines.

    python -m minibatcher.grading.child EXERCISES FOLDER [--what 3.2] [--skip EXERCISE ...] [--done CHECK ...]

No pytest, and so no conftest.py, takes part. An exercise's checks are told when it begins; then each check has a line
when it begins and one when it ends. Whatever the learner's code prints goes elsewhere.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minibatcher.grading.limits import SECONDS
from minibatcher.grading.report import CheckResult
from minibatcher.grading.runner import Loader, draw, load_misconceptions, run_check
from minibatcher.grading.tasks import Check, collect, wanted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("exercises", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--what")
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--done", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    args = parser.parse_args()

    os.environ["TRITON_INTERPRET"] = "1"  # counts when triton is first imported
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = io.StringIO()

    def tell(**event: Any) -> None:
        lines.write(json.dumps(event) + "\n")
        lines.flush()

    def stuck(why: str, line: str) -> None:
        tell(stuck=why, line=line)
        os._exit(3)

    loader, known = Loader(args.folder), load_misconceptions(args.exercises)

    def names(exercise: str) -> dict[str, Any]:
        tell(loading=exercise)
        try:
            return loader.names(exercise)
        finally:
            tell(loading="")

    def run(check: Check, seconds: float) -> CheckResult:
        file, load_names = f"{check.exercise}.py", functools.partial(names, check.exercise)
        return run_check(check, load_names, file=file, seconds=seconds, misconceptions=known, stuck=stuck)

    everything: list[tuple[Check, CheckResult]] = []
    endless: set[str] = set()  # tasks that did not come to an end: their other checks need not take as long
    try:
        exercises = wanted(args.exercises, args.what)
    except ValueError as error:
        tell(refused=str(error))
        return
    tell(exercises=exercises)
    for exercise in exercises:
        if exercise in args.skip:
            continue
        checks = collect(args.exercises, exercise, args.what)
        tell(exercise=exercise, checks=[[asdict(check.task), check.name, check.sentence] for check in checks])
        for check in checks:
            if check.name not in args.done:
                tell(begins=check.name)
                result = run(check, min(args.seconds, 1.0) if check.task.number in endless else args.seconds)
                tell(ends=check.name, result=asdict(result))
                everything.append((check, result))
                if result.failure and result.failure.kind == "time":
                    endless.add(check.task.number)
        tell(over=exercise)
    if everything and not args.skip and not args.done:
        tell(picture=draw(everything, loader))
    tell(finished=True)


if __name__ == "__main__":
    main()
