"""The shape of a step: all that its time depends on, from a plan that is to run or from a trace of what ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from minibatcher.plan import Plan
from minibatcher.trace import StepRecord, Trace


class Shape(NamedTuple):
    """What a step computes and moves."""

    tokens: int = 0  # rows of the linear layers
    sampled: int = 0  # rows of the output layer
    pairs: int = 0  # (query, key) pairs of attention
    kv: int = 0  # tokens whose keys and values are read
    swaps: int = 0  # requests copied to the CPU or back
    blocks: int = 0  # of theirs


def pairs(new: int, context: int) -> int:
    """Pairs that `new` tokens look at, the last of which sees `context` tokens, itself among them."""
    return new * context - new * (new - 1) // 2


def rectangle(rows: int, width: int, columns: int) -> Shape:
    """A padded batch (stage 1): `width` new columns of `columns` in all, computed in every row, finished or not."""
    return Shape(rows * width, rows, rows * pairs(width, columns), rows * columns)


def decodes(batch: int, context: int) -> Shape:
    """The shape of a step in which `batch` requests decode, each with `context` tokens."""
    return Shape(tokens=batch, sampled=batch, pairs=batch * context, kv=batch * context)


def planned(plan: Plan) -> Shape:
    """The shape of a flat batch that is about to run."""
    tokens = sampled = looked_at = kv = 0
    for request, n in plan.work.items():
        context = request.num_computed + n
        tokens += n
        looked_at += context if n == 1 else pairs(n, context)
        kv += context
        sampled += context == len(request.token_ids)
    swaps = plan.swap_out + plan.swap_in
    return Shape(tokens, sampled, looked_at, kv, len(swaps), sum(len(swap.source) for swap in swaps))


def recorded(trace: Trace) -> Iterator[tuple[StepRecord, Shape]]:
    """The steps that computed something, each with its shape."""
    columns = 0  # of the padded batch so far
    away: dict[str, int] = {}  # blocks of requests that wait in CPU memory
    for record in trace:
        moved = {p.id: p.blocks for p in record.preempted if p.mode == "swap"}
        back = [away.pop(id) for id in record.resumed if id in away]
        away |= moved
        if not record.work:
            continue
        if trace.meta.get("stage") == "static":
            lanes: dict[int, int] = defaultdict(int)
            for work in record.work:  # with the padding, all rows are of one width
                lanes[work.lane] += work.tokens
            width = max(lanes.values())
            columns = width + (0 if record.admitted else columns)
            yield record, rectangle(len(lanes), width, columns)
            continue
        contexts: dict[str, int] = {}
        for work in record.work:  # a chunk that is partly computed again has two entries
            contexts[work.id] = max(work.context, contexts.get(work.id, 0))
        yield (
            record,
            Shape(
                tokens=sum(work.tokens for work in record.work),
                sampled=sum(map(len, record.emitted.values())),
                pairs=sum(pairs(work.tokens, work.context) for work in record.work),
                kv=sum(contexts.values()),
                swaps=len(moved) + len(back),
                blocks=sum(moved.values()) + sum(back),
            ),
        )
