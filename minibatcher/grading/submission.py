"""The learner's file, as the checks see it: every call is noted, so that a failure can say what was called."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from minibatcher.grading.checks import Wrong, show, show_argument

CALLS_SHOWN = 8


class Submission:
    """Attributes are those of the file. `calls`: what the checks called, and what came back, as lines of text."""

    def __init__(self, names: dict[str, Any], file: str) -> None:
        self._names, self._file = names, file
        self.calls: list[str] = []

    def plain(self, name: str) -> Any:
        """Without noting the calls: for a class that the engine is to use."""
        if name not in self._names:
            raise Wrong(f"{self._file} has no {name} any more: put back the line that begins with it")
        return self._names[name]

    def __getattr__(self, name: str) -> Any:
        value = self.plain(name)
        if inspect.isclass(value):
            return lambda *args, **kwargs: Watched(self._call(name, value, args, kwargs, anew=True), self)
        if inspect.isfunction(value):
            return lambda *args, **kwargs: self._call(name, value, args, kwargs, anew=True)
        return value

    def _call(self, name: str, function: Callable, args: tuple, kwargs: dict[str, Any], anew: bool = False) -> Any:
        if anew:
            self.calls.clear()
        # Before the call, since it may change its arguments.
        given = ", ".join(
            [*map(show_argument, args), *(f"{key}={show_argument(value)}" for key, value in kwargs.items())]
        )
        self.calls.append(_each_once(f"{name}({given})"))
        result = function(*args, **kwargs)
        if not inspect.isclass(function):
            self.calls[-1] = _each_once(f"{self.calls[-1]} -> {show_argument(result)}")
        return result


def _each_once(text: str) -> str:
    """A request that is named again goes by its name alone."""
    seen: set[str] = set()

    def short(found: re.Match[str]) -> str:
        again = found[1] in seen
        seen.add(found[1])
        return found[1] if again else found[0]

    return re.sub(r"<(\w+): [^>]*>", short, text)


class Watched:
    """An object of a class of the learner's; its calls are noted too."""

    def __init__(self, thing: Any, submission: Submission) -> None:
        self._thing, self._submission = thing, submission

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if callable(value):
            return lambda *args, **kwargs: self._submission._call(f"  .{name}", value, args, kwargs)
        self._submission.calls.append(f"  .{name} -> {show(value, 120)}")
        return value


def load(*paths: Path) -> dict[str, Any]:
    """Runs the file and returns its names. Of several files each is laid over those before it.

    (A mutant is a solution with some functions laid over it: what the others call is then the mutant's.)
    """
    module = ModuleType(paths[0].stem)
    module.__file__ = str(paths[0])
    sys.modules[module.__name__] = module  # dataclasses look themselves up there
    for path in paths:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return module.__dict__


def last_calls(calls: Sequence[str]) -> list[str]:
    return [*calls] if len(calls) <= CALLS_SHOWN else [calls[0], "  ...", *calls[-CALLS_SHOWN:]]
