"""What the engine costs between two calls of the model, in microseconds per running request and step.

The yardstick is the barest loop that could serve anybody: append a token to each request, and take a block when one
is full. It runs in turn with what is measured. No model runs and no trace is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from minibatcher.measure.report import Comparison, Figure, Measured, undisturbed
from minibatcher.memory.contiguous import ContiguousAllocator
from minibatcher.plan import Plan
from minibatcher.request import Request, SamplingParams
from minibatcher.schedulers.iteration import IterationScheduler

RUNNING = (32, 256, 1024)  # requests at once
CONTEXTS = (100, 1000)  # tokens of each
STEPS = 60  # of a round
BLOCK_SIZE = 16
TOKEN = 7
OUTPUT = 16  # tokens of a request that comes and goes: at every step one in 16 ends, and another takes its place

BARS = "The bars were set where the barest loop took about 1 us; the last column says what it took here."


def comparisons(running: Sequence[int] = RUNNING, contexts: Sequence[int] = CONTEXTS) -> dict[str, Comparison]:
    def linear(what: str, name: str) -> Figure:
        few, many = running[0], running[-1]
        return Figure(
            f"{what}: one of {many:,} against one of {few:,}", f"{name} {many}", f"{name} {few}", "us", 1.5, True
        )

    def against_barest(what: str, name: str, bar: float) -> list[Figure]:
        return [Figure(f"{what}, {n:,} running", f"{name} {n}", f"barest {n}", "us", bar, True) for n in running]

    def all_sizes(measure: Callable[..., Measured], **how: Any) -> Callable[[int], Measured]:
        def one_round(seed: int) -> Measured:
            measured: Measured = {"note": BARS}
            for n in running:
                measured |= {f"{name} {n}": time for name, time in measure(n, **how).items()}
            return measured

        return one_round

    scheduling, changing = "schedule + commit, all decode", "schedule + commit, requests come and go"
    out = {
        "steady": Comparison(
            all_sizes(schedule_and_commit), [*against_barest(scheduling, "engine", 1.6), linear(scheduling, "engine")]
        ),
        "changing": Comparison(
            all_sizes(schedule_and_commit, output=OUTPUT),
            [*against_barest(changing, "engine", 3.5), linear(changing, "engine")],
        ),
    }
    for context in contexts:
        what = f"plan to tensors, context {context:,}"
        figures = [*against_barest(what, "engine", 3), linear(what, "engine")]
        out[f"tensors-{context}"] = Comparison(all_sizes(plan_to_tensors, context=context), figures)
    return out


def schedule_and_commit(running: int, output: int | None = None, context: int = 100, steps: int = STEPS) -> Measured:
    """output: each request ends after that many tokens, and another takes its place; None is nobody ends."""
    longest = context + (output or steps) + 2
    allocator = ContiguousAllocator(running * -(-longest // BLOCK_SIZE), BLOCK_SIZE, longest)
    scheduler = IterationScheduler(allocator=allocator, max_num_seqs=running, max_model_len=longest)
    scheduler.tracing = False
    names = map(str, count())

    def newcomer(tokens: int) -> Request:
        return Request([TOKEN] * context, SamplingParams(max_tokens=tokens), next(names))

    for i in range(running):  # their ends are spread over the steps
        scheduler.add(newcomer(2 + i % output if output else steps + 2))
    queue = [newcomer(output) for _ in range(steps * (running // output + 2))] if output else []
    scheduler.commit(plan := scheduler.schedule(), dict.fromkeys(plan.work, TOKEN))

    def engine() -> float:
        start = perf_counter()
        for _ in range(running - len(scheduler.running)):
            scheduler.add(queue.pop())
        plan = scheduler.schedule()
        scheduled = perf_counter()
        sampled = dict.fromkeys(plan.work, TOKEN)  # the stub of a model
        executed = perf_counter()
        scheduler.commit(plan, sampled)
        return perf_counter() - executed + scheduled - start

    return race(engine, running, context, steps)


def plan_to_tensors(running: int, context: int = 100, steps: int = STEPS) -> Measured:
    from minibatcher.memory.pool import KVPool
    from minibatcher.model.attention import TorchAttention
    from minibatcher.model.batch import flatten

    longest = context + steps
    allocator = ContiguousAllocator(running * -(-longest // BLOCK_SIZE), BLOCK_SIZE, longest)
    pool = KVPool([(1, 1)], allocator.num_blocks, BLOCK_SIZE)
    attention = TorchAttention(pool, running, longest)
    requests = [Request([TOKEN] * context) for _ in range(running)]
    for lane, request in enumerate(requests):
        allocator.admit(request, longest)
        request.lane, request.num_computed = lane, context - 1
        attention.begin(request)
    plan = Plan(work=dict.fromkeys(requests, 1))

    def engine() -> float:
        start = perf_counter()
        attention.prepare(flatten(plan, BLOCK_SIZE, pool.device))
        time = perf_counter() - start
        for request in requests:
            request.num_computed += 1
            request.token_ids.append(TOKEN)
        return time

    return race(engine, running, context, steps)


def race(engine: Callable[[], float], running: int, context: int, steps: int) -> Measured:
    """Medians over steps that alternate with the barest loop's, in microseconds per request."""
    requests = [Request([TOKEN] * context) for _ in range(running)]
    for request in requests:
        request.block_table = [0] * -(-context // BLOCK_SIZE)
    free_blocks = [0] * (running * (steps // BLOCK_SIZE + 1))

    def barest() -> float:
        start = perf_counter()
        for request in requests:
            request.token_ids.append(TOKEN)
            if len(request.token_ids) > len(request.block_table) * BLOCK_SIZE:
                request.block_table.append(free_blocks.pop())
        return perf_counter() - start

    with undisturbed():
        times = [(engine(), barest()) for _ in range(steps)]
    engine_us, barest_us = (1e6 * median(side) / running for side in zip(*times, strict=True))
    return {"engine": engine_us, "barest": barest_us}
