"""What the checks of the exercises are written with: `@exercise`, and `expect` with its relatives.

A task is a class, and its docstring the title. A check is a method `test_...(self, ex)`, and its docstring the sentence
that a learner reads when it fails. `ex` is the learner's file. Checks look at public behaviour alone: at what a
function returns or changes, never at private names or at the source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, TypeVar

from minibatcher.request import Request, SamplingParams

C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Task:
    """points: of the task as a whole. minutes: expected. bonus: outside the total. needs: a package it cannot do
    without, which some systems lack."""

    number: str
    title: str
    points: int
    minutes: int
    bonus: bool = False
    needs: str | None = None


def exercise(number: str, *, points: int, minutes: int, bonus: bool = False, needs: str | None = None) -> Callable:
    """Makes a class of checks a task of the board."""

    def mark(cls: C) -> C:
        title = (cls.__doc__ or "").strip()
        cls.task = Task(number, title, points, minutes, bonus, needs)  # type: ignore[attr-defined]
        return cls

    return mark


class Wrong(AssertionError):
    """A check's finding: what came, what was expected, or a sentence; and a picture where one says more."""

    def __init__(self, sentence: str = "", *, expected: str | None = None, got: str | None = None, picture: str = ""):
        super().__init__(sentence or f"expected {expected}, got {got}")
        self.sentence, self.expected, self.got, self.picture = sentence, expected, got, picture


def expect(got: Any, expected: Any, sentence: str = "") -> None:
    """The two are the same. So are a list, a tuple and a tensor of the same numbers, and numbers 1e-4 apart."""
    if not same(plain(got), plain(expected)):
        raise Wrong(sentence, expected=show(expected), got=show(got))


def expect_error(error: type[Exception], function: Callable, *arguments: Any, sentence: str = "") -> None:
    """The call raises this error."""
    try:
        got = function(*arguments)
    except error:
        return
    raise Wrong(sentence, expected=f"{error.__name__} is raised", got=f"no error, and {show(got)} came back")


def part(got: Any, index: int, of: int) -> Any:
    """One of the `of` results of a function."""
    if not isinstance(got, (tuple, list)) or len(got) != of:
        raise Wrong(f"{of} results are expected, in one tuple", got=show(got))
    return got[index]


def expect_timeline(got: Sequence[str], expected: Sequence[str], sentence: str = "") -> None:
    """Two schedules are the same: a row a lane, a character a step. The message points at the first wrong step."""
    if list(got) == list(expected):
        return
    steps = range(max(map(len, [*got, *expected]), default=0) + 1)
    columns = [[[row[step : step + 1] for row in rows] for step in steps] for rows in (got, expected)]
    wrong = next((step for step in steps if columns[0][step] != columns[1][step]), 0)
    raise Wrong(
        sentence,
        got="\n".join(got),
        picture=f"{timeline(expected, wrong, 'expected')}\n{timeline(got, wrong, 'got')}",
    )


def timeline(rows: Sequence[str], step: int | None = None, name: str = "") -> str:
    """The schedule as text, with a mark under one step; after it nothing is shown, it would only follow from it."""
    end = None if step is None else step + 1
    lines = [f"{name:<10}lane {lane}  {row[:end]}" for lane, row in enumerate(rows)]
    lines = [line if i == 0 else " " * 10 + line[10:] for i, line in enumerate(lines)]
    if step is not None:
        lines.append(" " * (18 + step) + f"^ step {step}")
    return "\n".join(lines)


# -- values as text, and compared -------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Tensors, arrays, tuples, ranges and sets as lists: a solution may return either."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple, range)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b or (isfinite(b) and abs(a - b) <= 1e-4 * max(1.0, abs(b)))
    return bool(a == b)


def show(value: Any, limit: int = 400) -> str:
    """The value in a line that a learner can read."""
    text = _text(plain(value))
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def show_argument(value: Any) -> str:
    """The same; of a large tensor only its shape."""
    shape = tuple(getattr(value, "shape", ()))
    return f"tensor{list(shape)}" if prod(shape) > 8 else show(value, 200)


def _text(value: Any) -> str:
    if isinstance(value, Request):
        return _request(value)
    if isinstance(value, str):
        return repr(str(value))  # without the class of an enum
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return f"[{_joined(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{_joined(f'{_text(key)}: {_text(item)}' for key, item in value.items())}}}"
    # An address in a text would differ at each run, and says nothing.
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _request(one: Request) -> str:
    """Its name, and what matters of it. Many tokens, or all alike, are counted."""
    few = len(one.token_ids) <= 6 and len(set(one.token_ids)) > 1
    parts = [f"token_ids {one.token_ids}" if few else counted(one.num_tokens), f"num_computed {one.num_computed}"]
    parts += [f"block_table {one.block_table}"] if one.block_table else []
    parts += [f"max_tokens {one.params.max_tokens}"] if one.params != SamplingParams() else []
    return f"<{one.request_id}: {', '.join(parts)}>"


def counted(tokens: int) -> str:
    return f"{tokens} token{'s' * (tokens != 1)}"


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)
