"""What timeline.js is fed: a trace as `Trace.save` writes it, the words that go with it, and the looks of states.py."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from minibatcher.trace import StepRecord, Trace
from minibatcher.views.device import busy_from
from minibatcher.views.states import INK, KV, OWNERS, PAPER, STATES, lanes_shown, number_of_lanes
from minibatcher.views.text import describe, differences, headline, name

TIMELINE_JS = Path(__file__).with_name("timeline.js")
TIMELINE_CSS = Path(__file__).with_name("timeline.css")

EMPTY = {"reserved": "reserved", "internal": "lost inside blocks", "external": "free in holes too short"}


def feed(*traces: Trace) -> dict[str, Any]:
    """One trace, or two to compare; JSON can carry it."""
    return {
        "traces": [
            {
                "lines": f"{json.dumps(trace.meta)}\n{lines(trace)}",
                "notes": notes(trace, trace),
                "name": name(trace),
                "title": headline(trace),
                "alt": describe(trace),
                "lanes": lanes_shown(trace),
            }
            for trace in traces
        ],
        "differences": differences(*traces) if len(traces) == 2 else [],
        "states": [state._asdict() for state in STATES],
        "looks": {"paper": PAPER, "ink": INK, "kv": KV, "owners": OWNERS},
    }


def lines(records: Iterable[StepRecord]) -> str:
    """JSON Lines, one a step, with how many new tokens in place of the tokens: a page shows no texts and holds none."""
    return "\n".join(
        replace(record, emitted={id: [len(tokens)] for id, tokens in record.emitted.items()}).to_json()
        for record in records
    )


def notes(trace: Trace, records: Iterable[StepRecord]) -> list[list[Any]]:
    """For each of these records of the trace: [seconds that the device was busy, what is done, who waits and why]."""
    lanes = number_of_lanes(trace)
    return [
        [record.t1 - busy_from(trace, record), what_is_done(record, lanes), who_waits(record)] for record in records
    ]


def what_is_done(record: StepRecord, lanes: int | None = None) -> str:
    """A step in words. lanes: how many there are."""
    tokens = Counter[str]()
    for work in record.work:
        tokens[work.kind] += work.tokens
    budget = "" if record.budget is None else f" of a budget of {record.budget}"
    kinds = ", ".join(f"{n} {kind}" for kind, n in tokens.items())
    busy = len({work.lane for work in record.work})
    said = [f"{_count(tokens.total(), 'token')}{budget}: {kinds}." if kinds else "Nothing is computed."]
    said.append(f"{_count(busy, 'lane')} busy." if lanes is None else f"{busy} of {_count(lanes, 'lane')} busy.")
    if record.kv:
        empty = [f", {record.kv[name]} {words}" for name, words in EMPTY.items() if record.kv.get(name)]
        said.append(f"KV: {record.kv['used']} of {record.kv['total']} tokens used{''.join(empty)}.")
    if record.cost:
        said.append(_modelled(**record.cost))
    ids = {"Arrived": [arrival.id for arrival in record.arrived], "Admitted": record.admitted}
    ids |= {"Resumed": record.resumed, "Finished": [f"{id} ({reason})" for id, reason in record.finished]}
    said += [f"{verb}: {_list(whom)}." for verb, whom in ids.items() if whom]
    for gone in record.preempted[:4]:
        lost = f"{_count(gone.tokens, 'token')} lost"
        cost = f"{_count(gone.blocks, 'block')} moved to the CPU" if gone.mode == "swap" else lost
        does = "yields" if gone.cause == "turn" else f"is preempted by {gone.mode}"
        said.append(f"{gone.id} {does}, {cost}: {gone.why}.")
    return " ".join(said)


def who_waits(record: StepRecord) -> str:
    if record.waiting is None:
        return "Nobody waits."
    id, why, behind = record.waiting
    return f"Request {id} waits: {why}. {f'{behind} more' if behind else 'Nobody stands'} behind it."


def _modelled(seconds: float, mfu: float | None = None, mbu: float | None = None, **terms: float) -> str:
    large = [f"{name} {_milliseconds(term)}" for name, term in terms.items() if term > 0.01 * seconds]
    use = "" if mfu is None or mbu is None else f"; MFU {100 * mfu:.2g}%, MBU {100 * mbu:.2g}%"
    return f"The GPU, modelled: {', '.join(large)}{use}."


def _milliseconds(seconds: float) -> str:
    return f"{float(f'{1000 * seconds:.3g}'):,g} ms"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _list(items: Sequence[str]) -> str:
    return ", ".join(items[:8]) + (f" and {len(items) - 8} more" if len(items) > 8 else "")
