"""Stand-ins for the model, the clock and the GPU, in plain Python: small enough to read, quick enough for a grader.

Their answers depend on every token that is seen and on its position, so a token in a wrong place changes what follows.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from math import exp

from minibatcher.engine import Engine
from minibatcher.grading.checks import counted
from minibatcher.measure.simulator import VirtualClock
from minibatcher.plan import Plan
from minibatcher.request import Request, SamplingParams
from minibatcher.schedulers.base import Scheduler
from minibatcher.trace import Trace

Vector = list[float]
VOCAB, DIM = 50, 8


class ToyModel:
    """A language model with one attention layer and random weights.

    `seen` notes the position of every token that was read, in order.
    """

    def __init__(self) -> None:
        self.seen: list[int] = []

    def read(
        self, token_ids: Sequence[int], positions: Sequence[int]
    ) -> tuple[list[Vector], list[Vector], list[Vector]]:
        """Queries, keys and values of n tokens at their positions: three lists of n vectors."""
        if len(token_ids) != len(positions):
            raise ValueError(f"{len(token_ids)} tokens and {len(positions)} positions: each token has one position")
        self.seen += positions
        queries, keys, values = (
            [_vector(f"{what} {token} {position}") for token, position in zip(token_ids, positions, strict=True)]
            for what in ("query", "key", "value")
        )
        return queries, keys, values

    def next_token(self, attended: Vector) -> int:
        """The token that follows, from what the last token got by attention."""
        # Any change of it gives another token: a real model would show a mistake too, but sometimes much later.
        return zlib.crc32(repr([round(x, 6) for x in attended]).encode()) % VOCAB


def attend(query: Vector, keys: Sequence[Vector], values: Sequence[Vector]) -> Vector:
    """Attention of one token: the mean of the values, weighted by how well their keys fit the query."""
    if query and not _is_number(query[0]):
        raise TypeError(f"attend wants one query, a list of numbers; you gave a list of {len(query)} queries")
    for name, vectors in (("keys", keys), ("values", values)):
        for i, vector in enumerate(vectors):
            if _is_number(vector):
                raise TypeError(f"{name} must be one vector per token; {name}[{i}] is a number")
            if vector and not _is_number(vector[0]):
                raise TypeError(
                    f"{name} must be one vector per token; {name}[{i}] is a list of vectors "
                    "(append where extend is meant?)"
                )
    if len(keys) != len(values):
        raise ValueError(f"attend wants a key and a value for each token; you gave {len(keys)} and {len(values)}")
    scores = [_dot(query, key) for key in keys]
    weights = [exp(score - max(scores)) for score in scores]
    return [sum(w * value[i] for w, value in zip(weights, values, strict=True)) / sum(weights) for i in range(DIM)]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _vector(name: str) -> Vector:
    draw = random.Random(name)
    return [draw.gauss(0, 1) for _ in range(DIM)]


def _dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


# -- for the real engine ----------------------------------------------------------------------------------------------


def answer(context: Sequence[tuple[int, int]]) -> int:
    """The next token (2 to 99) after these (token, position) pairs."""
    return 2 + zlib.crc32(repr([tuple(pair) for pair in context]).encode()) % 98


def answers(prompt: Sequence[int], n: int) -> list[int]:
    """The n tokens that follow a prompt: what an engine must give, whatever else it serves."""
    token_ids = list(prompt)
    for _ in range(n):
        token_ids.append(answer([(token, position) for position, token in enumerate(token_ids)]))
    return token_ids[len(prompt) :]


class ToyRunner:
    """Keeps each token in its slot and answers from what the block table leads to, as a real model would.

    So a block that two requests write to, or that was given away too early, shows in the tokens. A step takes
    base_s + token_s x tokens.
    """

    def __init__(self, clock: VirtualClock, block_size: int = 4, base_s: float = 1.0, token_s: float = 0.0) -> None:
        self.clock, self.block_size, self.base_s, self.token_s = clock, block_size, base_s, token_s
        self.cells: dict[int, tuple[int, int]] = {}  # slot -> (token, position)

    def execute(self, plan: Plan) -> dict[Request, int | None]:
        self.clock.time += self.base_s + self.token_s * sum(plan.work.values())
        for request, n in plan.work.items():
            for position in range(request.num_computed, request.num_computed + n):
                self.cells[self.slot(request, position)] = (request.token_ids[position], position)
        return {request: self.sample(request) for request, n in plan.work.items() if n == request.gap}

    def slot(self, request: Request, position: int) -> int:
        block, offset = divmod(position, self.block_size)
        if block >= len(request.block_table):
            raise IndexError(
                f"request {request.request_id!r} has {len(request.block_table)} blocks of {self.block_size} tokens, "
                f"and none for the token at position {position}"
            )
        return request.block_table[block] * self.block_size + offset

    def sample(self, request: Request) -> int:
        return answer([self.cells.get(self.slot(request, p), (0, 0)) for p in range(request.num_tokens)])


class RowRunner(ToyRunner):
    """The same for stage 1, which has no blocks."""

    def execute(self, plan: Plan) -> dict[Request, int | None]:
        self.clock.time += self.base_s
        return {request: answer([(t, p) for p, t in enumerate(request.token_ids)]) for request in plan.work}


def engine(scheduler: Scheduler, **step: float) -> Engine:
    """The real engine around a scheduler, with the toys in place of the model and the clock."""
    clock = VirtualClock()
    allocator = scheduler.allocator
    runner = ToyRunner(clock, allocator.block_size, **step) if allocator else RowRunner(clock)
    return Engine(scheduler, runner, clock, meta={"stage": type(scheduler).__name__, "model": "toy"})  # type: ignore[arg-type]


def request(name: str, prompt: int, max_tokens: int, arrival: float = 0.0) -> Request:
    """A request with a prompt of so many tokens; its name decides which."""
    draw = random.Random(name)
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return Request([draw.randrange(2, 100) for _ in range(prompt)], params, name, arrival=arrival)


def lanes(trace: Trace, number: int) -> list[str]:
    """The timeline by name: a row a lane, a character a step.

    The first letter of the request's name, as a capital while it reads its prompt; `/` a wasted row, `.` an idle lane.
    """
    rows = [["."] * len(trace) for _ in range(number)]
    for step, record in enumerate(trace):
        for work in sorted(record.work, key=lambda work: work.kind != "wasted"):
            letter = work.id[0].lower()
            signs: dict[str, Callable[[str], str]] = {"decode": str, "wasted": lambda _: "/"}
            rows[work.lane][step] = signs.get(work.kind, str.upper)(letter)
    return ["".join(row) for row in rows]


def story(trace: Trace, number: int) -> str:
    """A trace to read: the timeline, and below it what happened in each step."""
    rows = [f"lane {lane}   {row}" for lane, row in enumerate(lanes(trace, number))]
    for record in trace:
        parts = [f"{one.id} arrives (prompt {one.prompt_tokens}, wants {one.max_tokens})" for one in record.arrived]
        parts += [f"{id} joins" for id in record.admitted] + [f"{id} comes back" for id in record.resumed]
        parts += [f"{one.id} gives way and loses {counted(one.tokens)} ({one.why})" for one in record.preempted]
        parts += [f"{one.id} computes {one.tokens}" for one in record.work if one.kind != "decode"]
        parts += [f"{one.id} decodes, its context is {one.context}" for one in record.work if one.kind == "decode"]
        parts += [f"{id} ends ({reason})" for id, reason in record.finished]
        if record.waiting:
            parts.append(f"{record.waiting.id} waits: {record.waiting.why}")
        rows.append(f"step {record.step:>2}  " + "; ".join(parts))
    return "\n".join(rows)
