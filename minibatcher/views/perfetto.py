"""A trace as Chrome trace events: open the file in https://ui.perfetto.dev or in chrome://tracing."""

from __future__ import annotations

import json
from collections import Counter
from os import PathLike
from typing import Any

from minibatcher.measure.metrics import span
from minibatcher.trace import Trace
from minibatcher.views.device import busy_from, has_own_times
from minibatcher.views.states import shown

Event = dict[str, Any]


def to_perfetto(trace: Trace, path: str | PathLike[str]) -> None:
    """Write a track per lane, one for the device, one for the engine, one for arrivals and ends, and counters."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events(trace), "displayTimeUnit": "ms", "otherData": trace.meta}, file)


def events(trace: Trace) -> list[Event]:
    """Chrome trace events, in microseconds since the first arrival, or the first step if that is earlier."""
    begin, _ = span(trace)
    lanes = sorted({work.lane for record in trace for work in record.work})
    digits = max(2, len(str(max(lanes, default=0))))  # Perfetto sorts tracks by name: 07 comes before 12
    lane_name = {lane: f"lane {lane:0{digits}}" for lane in lanes}
    tracks = ["device", "engine", *lane_name.values(), "requests"]
    thread = {name: number for number, name in enumerate(tracks)}
    process = {"name": f"minibatcher {trace.meta.get('stage', '')}".strip()}
    out: list[Event] = [{"ph": "M", "name": "process_name", "pid": 0, "args": process}]
    out += [{"ph": "M", "name": "thread_name", "pid": 0, "tid": thread[t], "args": {"name": t}} for t in tracks]

    def at(seconds: float) -> float:
        return round((seconds - begin) * 1e6, 3)  # to the nanosecond, Perfetto's own unit

    def complete(track: str, name: str, start: float, end: float, args: dict[str, Any]) -> None:
        # Perfetto rejects spans that overlap on a track: the duration is between the rounded ends.
        duration = round(at(end) - at(start), 3)
        out.append(
            {"ph": "X", "name": name, "pid": 0, "tid": thread[track], "ts": at(start), "dur": duration, "args": args}
        )

    def instant(name: str, time: float, args: dict[str, Any]) -> None:
        out.append(
            {"ph": "i", "s": "t", "name": name, "pid": 0, "tid": thread["requests"], "ts": at(time), "args": args}
        )

    def counter(name: str, time: float, values: dict[str, int]) -> None:
        out.append({"ph": "C", "name": name, "pid": 0, "ts": at(time), "args": values})

    before = begin
    for record in trace:
        start, scheduled = record.t0, min(record.t0 + record.schedule_s, record.t1)
        if has_own_times(trace):  # what was scheduled before the device began
            start, scheduled = max(before, record.t0 - record.schedule_s), record.t0
        complete("engine", "schedule", start, scheduled, {"step": record.step})
        complete("engine", "execute", scheduled, record.t1, {"step": record.step})
        if record.work:
            complete("device", "busy", busy_from(trace, record), record.t1, {"step": record.step})
        before = record.t1

        rows = Counter({"prefill": 0, "decode": 0, "wasted": 0})
        padding = Counter[int]()
        for work in record.work:
            rows[work.kind] += work.tokens
            padding[work.lane] += work.tokens if work.kind == "wasted" else 0
        for lane, work in shown(record).items():  # one span a lane, also where a row is padding and prompt
            args = {"request": work.id, "tokens": work.tokens, "context": work.context, "step": record.step}
            if work.kind != "wasted":
                args["padding"] = padding[lane]
            complete(lane_name[lane], f"{work.kind} {work.id}", record.t0, record.t1, args)

        counter("scheduled tokens", record.t0, dict(rows))
        counter("waiting", record.t0, {"requests": 1 + record.waiting.behind if record.waiting else 0})
        if record.kv:
            unused = record.kv["reserved"] + record.kv["internal"]
            counter("kv tokens", record.t0, {"used": record.kv["used"], "reserved": unused})
        for arrival in record.arrived:
            instant(f"{arrival.id} arrives", arrival.time, {"prompt_tokens": arrival.prompt_tokens})
        for id, reason in record.finished:
            instant(f"{id} ends", record.t1, {"reason": reason})
    return out
