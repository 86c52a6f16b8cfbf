"""A trace in words, and its timeline in characters: a row per lane, a character per step.

It needs neither colour nor Unicode:

    lane 0  Pdddddddddd/////Pdddddd
    lane 1  PdddddddddddddddPddd...
    step    0         10        20
    P prefill  d decode  / wasted  . idle
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from minibatcher.measure.metrics import summary
from minibatcher.trace import StepRecord, Trace
from minibatcher.views.states import CODE, STATES, shown

if TYPE_CHECKING:
    from rich.text import Text

GUTTER = 8  # characters in front of the first step
_IDLE, _, *_COMPUTING = STATES  # nobody waits in a lane
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
    model = str(trace.meta.get("model", "")).rstrip("/").rpartition("/")[2]  # of a folder or a hub id the last part
    return (
        f"{trace.meta.get('stage', 'trace')}{' on ' if model else ''}{model}: {numbers.requests} requests, "
        f"{numbers.steps} steps, {numbers.seconds:,.2f} s, {numbers.output_tokens_per_s:,.1f} output tokens/s, "
        f"{numbers.wasted_row_share:.0%} of the rows wasted"
    )


def describe(trace: Trace) -> str:
    """The timeline in one sentence: the text alternative of its picture."""
    numbers = summary(trace)
    return (
        f"Timeline of {headline(trace)}; {numbers.mean_lanes_busy:.1f} of {len(_rows(trace.records, None))} lanes are "
        f"busy and {numbers.mean_lanes_useful:.1f} useful on average, and at most {numbers.max_waiting} requests wait."
    )


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
