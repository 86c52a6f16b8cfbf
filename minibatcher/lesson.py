"""What the notebooks of the course begin with, and how they show the package's own source."""

from __future__ import annotations

import difflib
import inspect
import os
import textwrap
from importlib.metadata import version
from pathlib import Path
from typing import Any

from IPython.display import Markdown

import minibatcher
from minibatcher.doctor import device, use_threads

HOME = Path(minibatcher.__file__).parents[1]


def begin() -> None:
    """Print what this machine is for the course, and keep half of its cores free for the page that shows it."""
    use_threads(0)  # before torch is imported
    model = os.environ.get("MINIBATCHER_MODEL", "smollm2")
    print(f"{device()[1]}\nminibatcher {minibatcher.__version__}, torch {version('torch')}, model {model}")


def source(thing: Any) -> Markdown:
    """The source of a function, class or module, as it is today, with its file and line."""
    lines, first = inspect.getsourcelines(thing)
    body = textwrap.dedent("".join(lines)).rstrip()
    return Markdown(f"`{_file(thing)}`, line {max(1, first)}:\n\n```python\n{body}\n```")  # a module begins at 0


def diff(before: Any, after: Any, context: int = 1) -> Markdown:
    """What turns the source of one thing into that of another. context: unchanged lines around each change."""
    a, b = (inspect.getsource(thing).splitlines() for thing in (before, after))
    lines = list(difflib.unified_diff(a, b, _file(before), _file(after), n=context, lineterm=""))
    return Markdown("```diff\n" + "\n".join(lines) + "\n```" if lines else "They are the same, line for line.")


def _file(thing: Any) -> str:
    path = Path(inspect.getsourcefile(inspect.unwrap(thing)) or "")  # a decorator stands in another file
    return path.relative_to(HOME).as_posix() if path.is_relative_to(HOME) else path.name
