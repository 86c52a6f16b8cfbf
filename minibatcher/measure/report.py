"""How `minibatcher bench` measures and prints: a figure is a ratio of two things measured side by side.

Other programs on the machine change what a second is worth, so no figure is compared with one of another run. All
sides of a comparison are measured in turn, round after round, and a figure is the median of the rounds' ratios. Where
others never rest, seconds of the processor are steadier than seconds on the wall (`--clock cpu`).
"""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# cpu: only while this process computes, all its threads added; with one thread, about what a quiet machine takes
CLOCKS = {"wall": perf_counter, "cpu": process_time}
Measured = dict[str, float | str]  # one round; a text in the place of a number says why there is none


@dataclass(frozen=True)
class Figure:
    """`over` divided by `under`, two names in what a comparison measured, and the bar it should reach.

    unit: of the two, for the table. at_most: the bar is an upper one.
    """

    what: str
    over: str
    under: str
    unit: str
    bar: float | None = None
    at_most: bool = False


@dataclass(frozen=True)
class Comparison:
    """measure: one round, from a seed. Its result may have a `note`, which is printed below the table."""

    measure: Callable[[int], Measured]
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Result:
    """A line of the table. value: the median of `rounds`; None when it could not be measured, for `why_not`."""

    comparison: str
    figure: Figure
    value: float | None = None
    rounds: Sequence[float] = ()
    over: float | None = None  # the medians of both sides
    under: float | None = None
    why_not: str | None = None

    @property
    def met(self) -> bool | None:
        """None without a bar or a value."""
        if self.figure.bar is None or self.value is None:
            return None
        return self.value <= self.figure.bar if self.figure.at_most else self.value >= self.figure.bar

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def run(
    console: Console, comparisons: Mapping[str, Comparison], seeds: int, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Measure each comparison with seeds 0, 1, 2 ..., print the table, and return all of it, ready for JSON."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    about = {**machine(), **about, "seeds": seeds}
    lines: list[Result] = []
    notes: dict[str, list[str]] = {}  # who says so
    measured: dict[str, list[Measured]] = {}
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=seeds * len(comparisons))
        for name, comparison in comparisons.items():
            progress.update(task, description=name)
            measured[name] = []
            for seed in range(seeds):
                measured[name].append(comparison.measure(seed))
                progress.advance(task)
            lines += [result(name, figure, measured[name]) for figure in comparison.figures]
            for note in dict.fromkeys(str(one["note"]) for one in measured[name] if "note" in one):
                notes.setdefault(note, []).append(name)
    console.print(table(lines))
    for note, names in notes.items():
        console.print(f"{', '.join(names)}: {note}", highlight=False)
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    return {"about": about, "results": [line.to_dict() for line in lines], "notes": notes, "measured": measured}


def result(name: str, figure: Figure, measured: Sequence[Measured]) -> Result:
    pairs = [(one[figure.over], one[figure.under]) for one in measured]
    numbers = [(over, under) for over, under in pairs if not isinstance(over, str) and not isinstance(under, str)]
    if not numbers:
        why_not = next(side for pair in pairs for side in pair if isinstance(side, str))
        return Result(name, figure, why_not=why_not)
    ratios = [over / under for over, under in numbers]
    over, under = (median(side) for side in zip(*numbers, strict=True))
    return Result(name, figure, median(ratios), ratios, over, under)


def table(results: Sequence[Result]) -> Table:
    from rich.table import Table

    out = Table("", "median", "bar", "rounds", "medians of both")
    for line, following in zip(results, [*results[1:], None], strict=True):
        figure, last = line.figure, following is None or following.comparison != line.comparison
        bar = "" if figure.bar is None else f"{'at most' if figure.at_most else 'at least'} {figure.bar:g}"
        if line.value is None:
            out.add_row(figure.what, "-", bar, "", f"not measured: {line.why_not}", end_section=last)
            continue
        met = {True: ": met", False: ": [bold]missed[/]", None: ""}[line.met]
        spread = f"{min(line.rounds):.2f}-{max(line.rounds):.2f}" if len(line.rounds) > 1 else ""
        sides = f"{line.over:.3g} / {line.under:.3g} {figure.unit}"
        out.add_row(figure.what, f"{line.value:.2f}", bar + met, spread, sides, end_section=last)
    return out


def machine() -> dict[str, Any]:
    """Where and with what the figures were measured."""
    packages = {}
    for name in ("minibatcher", "torch", "transformers"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", 0)) or os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **packages,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "unknown")


@contextmanager
def undisturbed() -> Iterator[None]:
    """The garbage collector runs before, and not in between."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Stopwatch:
    """Seconds since it was made, by the clock that was chosen for this run."""

    clock = "wall"

    def __init__(self) -> None:
        self._now = CLOCKS[self.clock]
        self._start = self._now()

    @property
    def seconds(self) -> float:
        return self._now() - self._start


def seconds(function: Callable[[], object]) -> float:
    watch = Stopwatch()
    function()
    return watch.seconds
