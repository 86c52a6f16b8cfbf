"""Runs a check on a learner's file, and says what came of it. No pytest is needed for it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import linecache
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from minibatcher.grading.checks import Wrong
from minibatcher.grading.limits import SECONDS, TimeLimit, TooLong
from minibatcher.grading.report import FAILED, PASSED, SKIPPED, TODO, CheckResult, Failure
from minibatcher.grading.submission import Submission, last_calls, load
from minibatcher.grading.tasks import Check, checks_of, needed


def run_check(
    check: Check,
    load_names: Callable[[], dict[str, Any]],
    *,
    file: str = "",
    seconds: float = SECONDS,
    misconceptions: dict[str, Any] | None = None,
    stuck: Callable[[str, str], None] | None = None,
) -> CheckResult:
    """Run one check. load_names: gives the names of the learner's file, or raises what the file raises.

    seconds: of CPU time. stuck: as TimeLimit takes it.
    """
    result = CheckResult(check.name, check.sentence)
    if reason := needed(check.task):
        result.status, result.reason = SKIPPED, reason
        return result
    start, printed, calls = time.perf_counter(), io.StringIO(), []
    limit = TimeLimit(seconds, functools.partial(line_of, file=file), stuck)
    loading = True
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings(), limit:
            warnings.simplefilter("ignore")  # NumPy's, which Triton's interpreter computes with
            submission = Submission(load_names(), file or f"{check.exercise}.py")
            calls, loading = submission.calls, False
            check.function(submission)
        result.status = PASSED
    except (Exception, SystemExit, TooLong) as error:
        if not_begun(error):
            result.status = TODO
        else:
            result.status = FAILED
            failure = describe(error, file, limit, loading)
            failure.calls = [] if failure.picture else last_calls(calls)
            failure.printed = tail(printed.getvalue())
            failure.misconception = misconception(failure, check, misconceptions or {})
            result.failure = failure
    result.seconds = time.perf_counter() - start
    return result


def not_begun(error: BaseException | None) -> bool:
    """A stub raises NotImplementedError; inside a kernel Triton wraps it."""
    while error is not None:
        if isinstance(error, NotImplementedError):
            return True
        error = error.__cause__
    return False


def describe(error: BaseException, file: str, limit: TimeLimit, loading: bool) -> Failure:
    if isinstance(error, Wrong):
        return Failure("wrong", error.sentence, expected=error.expected, got=error.got, picture=error.picture)
    if isinstance(error, TooLong):
        return Failure("time", limit.why, where=limit.line)
    if isinstance(error, SyntaxError):
        where = f"{Path(error.filename or file).name}, line {error.lineno}: {(error.text or '').strip()}"
        return Failure("load", f"Python cannot read the file: {error.msg}", where=where)
    if isinstance(error, SystemExit):
        return Failure("error", "the code ends Python (SystemExit)", where=last_line(error.__traceback__, file))
    where = last_line(error.__traceback__, file)
    sentence = f"{type(error).__name__}: {error}"
    if loading:
        return Failure("load", f"the file cannot be loaded: {sentence}", where=where)
    if not where:  # in the check, with what came back: it has another shape
        return Failure("error", f"what came back is of another kind than expected ({sentence})")
    return Failure("error", sentence, where=where)


def line_of(frame: FrameType | None, file: str) -> str:
    """The innermost line of the learner's file in a running stack."""
    while frame is not None and Path(frame.f_code.co_filename).name != file:
        frame = frame.f_back
    return _line(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def last_line(tb: TracebackType | None, file: str) -> str:
    frames = [frame for frame in traceback.extract_tb(tb) if Path(frame.filename).name == file]
    return _line(frames[-1].filename, frames[-1].lineno or 0) if frames else ""


def _line(path: str, number: int) -> str:
    linecache.checkcache(path)
    return f"{Path(path).name}, line {number}: {linecache.getline(path, number).strip()}"


def tail(printed: str, lines: int = 10) -> str:
    return "\n".join(line[:200] for line in printed.rstrip().splitlines()[-lines:])


# -- misconceptions ---------------------------------------------------------------------------------------------------


def digest(failure: Failure) -> str:
    """The same for two solutions that are wrong in the same way, on any machine."""
    error = failure.sentence.partition(":")[0] if failure.kind == "error" else failure.sentence
    found = [failure.kind, error, failure.expected, failure.got, failure.picture]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12]


def misconception(failure: Failure, check: Check, known: dict[str, Any]) -> str:
    """What known wrong solutions that give the same on this check got wrong."""
    if failure.kind != "wrong" or failure.got in (None, "None", "[]", "{}"):  # too little to tell by
        return ""
    return known.get(check.task.number, {}).get(check.name, {}).get(digest(failure), "")


def load_misconceptions(exercises: Path) -> dict[str, Any]:
    path = exercises / "misconceptions.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


# -- one file ---------------------------------------------------------------------------------------------------------


class Loader:
    """Loads a learner's file anew for each check, so that nothing is left over from the one before.

    What a file raises when it is loaded, it raises again without being run again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors: dict[str, BaseException] = {}

    def names(self, exercise: str) -> dict[str, Any]:
        path = self.folder / f"{exercise}.py"
        if not path.exists():
            raise NotImplementedError(f"{path.name} is not there")
        if exercise in self.errors:
            raise self.errors[exercise]
        try:
            return load(path)
        except (Exception, SystemExit, TooLong) as error:
            self.errors[exercise] = error
            raise


def draw(ran: Sequence[tuple[Check, CheckResult]], loader: Loader) -> str:
    """The exercise's picture, once all its checks pass: the learner's functions inside the real engine."""
    scored = [(check, result) for check, result in ran if not check.task.bonus]
    exercises = {check.exercise for check, _ in scored}
    if len(exercises) != 1 or any(result.status != PASSED for _, result in scored):
        return ""
    exercise = exercises.pop()
    module = sys.modules[f"test_{exercise}"]
    if not hasattr(module, "picture") or len(scored) < len(list(checks_of(module))):
        return ""
    seconds = getattr(module, "PICTURE_SECONDS", SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), TimeLimit(seconds, lambda frame: ""):
            return module.picture(Submission(loader.names(exercise), f"{exercise}.py"))
    except (Exception, TooLong) as error:  # the checks have passed: that is what counts
        return f"(There is no picture: {type(error).__name__}: {error})"
