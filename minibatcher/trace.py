"""What the engine did, step by step: the one record behind every picture, table and metric.

A `Trace` is a `meta` dict and a list of `StepRecord`s. It holds numbers, texts, lists and dicts only, so that JSON
Lines (first line `meta`, then one line a step) carry it out and in without loss. The engine knows no view: a view
subscribes with `trace.listeners.append(function)` and is called with each new record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, NamedTuple

SCHEMA = 1


class Work(NamedTuple):
    """What one request did in one step.

    kind: `prefill` (prompt tokens), `decode` (one token after the prompt), `recompute` (tokens that were computed
    before, and lost in a preemption), or `wasted` (padding before a prompt, or the row of a finished request).
    tokens: rows of the model spent. context: the request's tokens in the cache after them.
    """

    id: str
    lane: int
    kind: str
    tokens: int
    context: int


class Arrival(NamedTuple):
    id: str  # free again once its request has finished
    time: float  # seconds on the engine's clock
    prompt_tokens: int
    max_tokens: int


class Preemption(NamedTuple):
    """A running request gave way.

    mode: `recompute` (its keys and values are dropped) or `swap` (they are moved to CPU memory). cause: `memory` (a
    decode needed a block), `priority` (a more important request waits), or `turn` (it had its turn: a yield, and no
    preemption). tokens: keys and values lost. blocks: moved.
    """

    id: str
    mode: str
    cause: str
    tokens: int
    blocks: int
    why: str


class BlockMove(NamedTuple):
    """Blocks that a request took (`take`) or gave back (`free`), in the order in which it happened."""

    id: str
    move: str
    blocks: list[int]


class Waiting(NamedTuple):
    """The first in the queue as schedule() saw it: why it was left out, and how many stand behind it."""

    id: str
    why: str
    behind: int


@dataclass(slots=True)
class StepRecord:
    step: int = 0
    t0: float = 0.0  # seconds on the engine's clock: the step begins; on a GPU, the GPU begins to work for it
    t1: float = 0.0  # its tokens are out
    schedule_s: float = 0.0  # spent in schedule(); on a GPU that is before t0
    work: list[Work] = field(default_factory=list)
    emitted: dict[str, list[int]] = field(default_factory=dict)  # id -> the step's new tokens
    arrived: list[Arrival] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)  # admitted again after a preemption
    preempted: list[Preemption] = field(default_factory=list)
    finished: list[tuple[str, str]] = field(default_factory=list)  # (id, reason)
    waiting: Waiting | None = None
    kv: dict[str, int] | None = None  # used, total, reserved, internal, external, in tokens; None at stage 1
    blocks: list[BlockMove] = field(default_factory=list)
    budget: int | None = None  # tokens the step could have scheduled
    cost: dict[str, float] | None = None  # on a modelled GPU: what the step's seconds are made of

    def to_json(self) -> str:
        record = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(record, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> StepRecord:
        record = cls(**json.loads(line))
        record.work = [Work(*item) for item in record.work]
        record.arrived = [Arrival(*item) for item in record.arrived]
        record.preempted = [Preemption(*item) for item in record.preempted]
        record.finished = [(id, reason) for id, reason in record.finished]
        record.blocks = [BlockMove(*item) for item in record.blocks]
        record.waiting = Waiting(*record.waiting) if record.waiting else None
        return record


class Trace:
    """The steps of one run.

    meta: stage, model, device, clock (`wall` or `virtual`), settings, and schema, the version of this format.
    """

    def __init__(self, meta: dict[str, Any] | None = None, records: list[StepRecord] | None = None) -> None:
        self.meta: dict[str, Any] = {"schema": SCHEMA, **(meta or {})}
        self.records: list[StepRecord] = records or []
        self.listeners: list[Callable[[StepRecord], None]] = []

    def append(self, record: StepRecord) -> None:
        self.records.append(record)
        for listener in self.listeners:
            listener(record)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[StepRecord]:
        return iter(self.records)

    def __getitem__(self, step: int) -> StepRecord:
        return self.records[step]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and (self.meta, self.records) == (other.meta, other.records)

    def save(self, path: str | PathLike[str]) -> None:
        """Write JSON Lines: `meta`, then one line a step."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(self.meta) + "\n")
            file.writelines(record.to_json() + "\n" for record in self.records)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Trace:
        """Read what `save` wrote. Raises ValueError with the line number for anything else."""
        number = 0
        try:
            with open(path, encoding="utf-8") as file:
                trace = cls()
                for number, line in enumerate(file, start=1):
                    if number > 1:
                        trace.records.append(StepRecord.from_json(line))
                        continue
                    trace.meta = json.loads(line)
                    if trace.meta.get("schema") != SCHEMA:
                        raise ValueError(f"schema {trace.meta.get('schema')!r}; this version reads {SCHEMA}")
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: not a trace that Trace.save wrote ({error})") from error
        if number == 0:
            raise ValueError(f"{path} is empty: a trace begins with a line of meta")
        return trace
