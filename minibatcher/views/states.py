"""The states that a picture shows, and how each looks. Hue alone carries none of them: each has its own sign.

Also who owns which block while a step runs. All views agree because all ask here; `timeline.js` is given the looks, and
does the same in its own language.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from minibatcher.trace import Preemption, StepRecord, Trace, Work

PAPER = {"light": "#FFFFFF", "dark": "#111111"}
INK = {"light": "#1A1A1A", "dark": "#E6E6E6"}
KV = "#009E73"
# Who owns a block; black text is readable on each. With more requests than colours the blocks' labels tell them apart.
OWNERS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#AAAA00")


class State(NamedTuple):
    name: str  # the kind of work, as the trace calls it, for a state that computes
    sign: str  # one ASCII character: in a terminal, and in a picture's cell that is large enough
    light: str  # colours that the common colour-blindnesses tell apart, on a light and on a dark page
    dark: str
    hatch: str = ""  # matplotlib's, for cells too small for the sign


STATES = (
    State("idle", ".", "#F2F2F2", "#262626"),
    State("waiting", "-", "#BDBDBD", "#6E6E6E"),
    State("preempted", "!", "#882255", "#D55E00", "\\\\\\\\"),  # these three do not compute
    State("prefill", "P", "#E69F00", "#E69F00", "||||||"),
    State("decode", "d", "#0072B2", "#56B4E9"),
    State("recompute", "R", "#A6761D", "#F5D9A8", "xxxx"),  # prefill's hue: it is a prefill again
    State("wasted", "/", "#E8C3D8", "#8A5A78", "////"),
)
CODE = {state.name: code for code, state in enumerate(STATES)}  # idle is 0


FEW = 8


def lanes_shown(trace: Trace) -> int:
    """Rows of a picture by lanes: those that were ever busy, and where lanes are few all: there an idle one is news."""
    most = 1 + max((work.lane for record in trace for work in record.work), default=0)
    return max(most, lanes if (lanes := number_of_lanes(trace) or 0) <= FEW else 0)


def number_of_lanes(trace: Trace) -> int | None:
    return trace.meta.get("settings", {}).get("max_num_seqs")


def shown(record: StepRecord, by: Literal["lane", "id"] = "lane") -> dict[Any, Work]:
    """The work that stands for each lane, or for each request by its id, in a picture of this step.

    A row of padding and prompt is prefill; a row is wasted when nothing in it is of use. A row that closes the end of
    a gap after a preemption is recompute.
    """
    rows: dict[Any, Work] = {}
    for work in record.work:
        row = getattr(work, by)
        if work.kind != "wasted" or row not in rows:
            rows[row] = work
    return rows


def preemptions(trace: Trace) -> Iterator[tuple[int, int | None, Preemption]]:
    """(index of the step, the victim's lane, what happened); a yield at the end of a turn is none.

    The lane is None for a victim that the trace never saw at work.
    """
    lanes: dict[str, int] = {}
    for step, record in enumerate(trace):
        for preemption in record.preempted:
            if preemption.cause != "turn":
                yield step, lanes.get(preemption.id), preemption
        lanes |= {work.id: work.lane for work in record.work}


class Owned(NamedTuple):
    """What a request holds of the pool. blocks: in the order of its tokens. tokens: slots that are written."""

    blocks: list[int]
    tokens: int


def owners(trace: Trace, step: int) -> dict[str, Owned]:
    """Who owns what while trace[step] runs: after those who gave way, before those who end in it leave."""
    blocks: dict[str, list[int]] = {}
    tokens: dict[str, int] = {}
    for i, record in enumerate(trace.records[: step + 1]):
        contexts: dict[str, int] = {}
        for work in record.work:  # a request may have two entries in a step: what is computed again, and what is new
            contexts[work.id] = max(work.context, contexts.get(work.id, 0))
        tokens |= contexts
        leaving = {work.id for work in record.work} if i == step else set()
        for id, move, moved in record.blocks:
            if move == "take":
                blocks.setdefault(id, []).extend(moved)
            elif id not in leaving:
                blocks[id] = [block for block in blocks.get(id, []) if block not in moved]
    return {id: Owned(table, tokens.get(id, 0)) for id, table in blocks.items() if table}
