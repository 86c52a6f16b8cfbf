"""What timeline.js is fed: a trace as `Trace.save` writes it, the words that go with it, and the looks of states.py."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from minibatcher.trace import StepRecord, Trace
from minibatcher.views.states import INK, KV, OWNERS, PAPER, STATES
from minibatcher.views.text import describe, differences, headline, name

TIMELINE_JS = Path(__file__).with_name("timeline.js")
TIMELINE_CSS = Path(__file__).with_name("timeline.css")


def feed(*traces: Trace) -> dict[str, Any]:
    """One trace, or two to compare; JSON can carry it."""
    return {
        "traces": [
            {
                "lines": f"{json.dumps(trace.meta)}\n{lines(trace)}",
                "name": name(trace),
                "title": headline(trace),
                "alt": describe(trace),
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
