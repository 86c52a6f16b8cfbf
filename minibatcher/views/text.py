"""A trace in words, and its timeline in characters: a row per lane, a character per step.

It needs neither colour nor Unicode:

    lane 0  Pdddddddddd/////Pdddddd
    lane 1  PdddddddddddddddPddd...
    step    0         10        20
    P prefill  d decode  R recompute  / wasted  . idle
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from minibatcher.measure.metrics import summary
from minibatcher.trace import StepRecord, Trace
from minibatcher.views.states import CODE, STATES, lanes_shown, number_of_lanes, shown

if TYPE_CHECKING:
    from rich.text import Text

GUTTER = 8  # characters in front of the first step
_IDLE, _, _, *_COMPUTING = STATES  # nobody waits in a lane
_STYLES = {state.sign: f"black on {state.dark}" for state in _COMPUTING}  # readable on light and dark terminals
_LEGEND = "  ".join(f"{state.sign} {state.name}" for state in [*_COMPUTING, _IDLE])


def render(steps: Trace | Sequence[StepRecord], width: int = 72, lanes: int | None = None) -> str:
    """The last `width` steps, at most GUTTER + width characters wide, then the legend.

    lanes: how many rows to draw; None draws those that these steps use.
    """
    records = _last(steps, width)
    rows = [f"lane {lane:<{GUTTER - 5}}{row}" for lane, row in enumerate(_rows(records, lanes))]
    return "\n".join([*rows, _ruler(records, width), _LEGEND])


def render_rich(steps: Trace | Sequence[StepRecord], width: int = 72, lanes: int | None = None) -> Text:
    """`render` with colours, for rich: `trace.listeners.append(lambda _: live.update(render_rich(trace)))`."""
    from rich.text import Text

    records = _last(steps, width)
    text = Text(no_wrap=True)
    for lane, row in enumerate(_rows(records, lanes)):
        text.append(f"lane {lane:<{GUTTER - 5}}")
        for sign, run in groupby(row):
            text.append("".join(run), _STYLES.get(sign, "dim"))
        text.append("\n")
    return text.append(f"{_ruler(records, width)}\n{_LEGEND}")


def headline(trace: Trace) -> str:
    """Stage, model, and the numbers in which two traces of one workload differ."""
    numbers = summary(trace)
    many = "" if numbers.requests == 1 else "s"
    return (
        f"{name(trace)}: {numbers.requests} request{many}, {numbers.steps} steps, {numbers.seconds:,.2f} s, "
        f"{numbers.output_tokens_per_s:,.1f} output tokens/s, "
        f"{numbers.wasted_row_share:.0%} of the computed positions wasted"
    )


def name(trace: Trace) -> str:
    """Stage and model."""
    model = str(trace.meta.get("model", "")).rstrip("/").rpartition("/")[2]  # of a folder or a hub id the last part
    return f"{trace.meta.get('stage', 'trace')}{' on ' if model else ''}{model}"


def describe(trace: Trace) -> str:
    """The timeline in one sentence: the text alternative of its picture."""
    numbers = summary(trace)
    lanes = number_of_lanes(trace) or lanes_shown(trace)
    return (
        f"Timeline of {headline(trace)}; {numbers.mean_lanes_busy:.1f} of {lanes} lanes are "
        f"busy and {numbers.mean_lanes_useful:.1f} useful on average, and at most {numbers.max_waiting} requests wait."
    )


def differences(a: Trace, b: Trace) -> list[tuple[str, ...]]:
    """What two traces of one workload differ in, as a table: (name, a's value, b's, the change from a to b)."""
    first, second = summary(a), summary(b)

    def change(x: float, y: float) -> str:
        return f"{y / x - 1:+.0%}".replace("-0%", "+0%") if x else ""

    def number(name: str, x: float, y: float) -> tuple[str, ...]:
        texts = [f"{n:.3g}" if n < 1000 else f"{n:,.0f}" for n in (x, y)]
        return name, *texts, change(x, y)

    def seconds(name: str, x: float | None, y: float | None) -> tuple[str, ...]:
        texts = ["-" if t is None else f"{t:.3g} s" if t >= 1 else f"{1000 * t:.3g} ms" for t in (x, y)]
        return name, *texts, change(x, y) if x and y is not None else ""

    def share(name: str, x: float | None, y: float | None) -> tuple[str, ...]:
        texts = ["-" if s is None else f"{s:.0%}" for s in (x, y)]
        return name, *texts, f"{100 * (y - x):+.0f} points" if x is not None and y is not None else ""

    return [
        number("output tokens/s", first.output_tokens_per_s, second.output_tokens_per_s),
        seconds("time", first.seconds, second.seconds),
        seconds("TTFT, median", first.ttft.p50, second.ttft.p50),
        seconds("TTFT, p95", first.ttft.p95, second.ttft.p95),
        seconds("ITL, median", first.itl.p50, second.itl.p50),
        seconds("ITL, p95", first.itl.p95, second.itl.p95),
        number("lanes useful, mean", first.mean_lanes_useful, second.mean_lanes_useful),
        share("positions wasted", first.wasted_row_share, second.wasted_row_share),
        share("KV used, mean", first.kv_used_share, second.kv_used_share),
        number("preemptions", first.preemptions, second.preemptions),
    ]


def _last(steps: Trace | Sequence[StepRecord], width: int) -> Sequence[StepRecord]:
    records = steps.records if isinstance(steps, Trace) else steps
    return records[max(0, len(records) - width) :]


def _rows(records: Sequence[StepRecord], lanes: int | None) -> list[str]:
    columns = [{lane: STATES[CODE[work.kind]].sign for lane, work in shown(record).items()} for record in records]
    if lanes is None:
        lanes = max((lane + 1 for column in columns for lane in column), default=0)
    return ["".join(column.get(lane, _IDLE.sign) for column in columns) for lane in range(lanes)]


def _ruler(records: Sequence[StepRecord], width: int) -> str:
    """Every tenth step's number begins under its step, where there is room for it."""
    ruler = ""
    for column, record in enumerate(records):
        number = str(record.step)
        if record.step % 10 == 0 and len(ruler) <= column <= width - len(number):
            ruler = f"{ruler:<{column}}{number} "
    return f"{'step':<{GUTTER}}{ruler}".rstrip()
