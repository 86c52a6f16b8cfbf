"""The states that a picture shows, and how each looks. Hue alone carries none of them: each has its own sign."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from minibatcher.trace import StepRecord, Work


class State(NamedTuple):
    name: str  # the kind of work, as the trace calls it, for a state that computes
    sign: str  # one ASCII character: in a terminal, and in a picture's cell that is large enough
    light: str  # colours that the common colour-blindnesses tell apart, on a light and on a dark page
    dark: str
    hatch: str = ""  # matplotlib's, for cells too small for the sign


STATES = (
    State("idle", ".", "#F2F2F2", "#262626"),
    State("waiting", "-", "#BDBDBD", "#6E6E6E"),
    State("prefill", "P", "#E69F00", "#E69F00", "||||||"),
    State("decode", "d", "#0072B2", "#56B4E9"),
    State("wasted", "/", "#E8C3D8", "#8A5A78", "////"),
)
CODE = {state.name: code for code, state in enumerate(STATES)}  # idle is 0


def shown(record: StepRecord, by: Literal["lane", "id"] = "lane") -> dict[Any, Work]:
    """The work that stands for each lane, or for each request by its id, in a picture of this step.

    A row of padding and prompt is prefill; a row is wasted when nothing in it is of use.
    """
    rows: dict[Any, Work] = {}
    for work in record.work:
        row = getattr(work, by)
        if work.kind != "wasted" or row not in rows:
            rows[row] = work
    return rows
