"""A runner without a model, and a clock without time: what the schedulers decide, in microseconds and without torch."""

from __future__ import annotations

from collections.abc import Callable

from minibatcher.engine import Engine
from minibatcher.memory.contiguous import ContiguousAllocator
from minibatcher.plan import Plan
from minibatcher.request import Request, SamplingParams
from minibatcher.schedulers.iteration import IterationScheduler
from minibatcher.schedulers.static import StaticScheduler


class StubRunner:
    """Every request gets the tokens 10, 11, 12 ...; a step takes a second. `before` may look at the plan, or raise."""

    def __init__(self, clock: StubClock) -> None:
        self.clock = clock
        self.plans: list[dict[str, int]] = []
        self.before: Callable[[Plan], None] = lambda plan: None
        self.token: Callable[[Request], int | None] = lambda request: 10 + len(request.output_token_ids)

    def execute(self, plan: Plan) -> dict[Request, int | None]:
        self.plans.append({request.request_id: n for request, n in plan.work.items()})
        self.clock.time += 1.0
        self.before(plan)
        return {request: self.token(request) for request, n in plan.work.items() if n == request.gap}


class StubClock:
    kind = "virtual"

    def __init__(self) -> None:
        self.time = 0.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.time

    def wait_until(self, t: float) -> None:
        self.waits.append(t)
        self.time = max(self.time, t)


def engine(stage: str, *, num_blocks: int = 64, block_size: int = 4, reserve="max_tokens", **settings) -> Engine:
    settings = {"max_num_seqs": 3, "max_model_len": 64, "eos_token_ids": [1], "vocab_size": 100} | settings
    if stage == "static":
        scheduler = StaticScheduler(**settings)
    else:
        allocator = ContiguousAllocator(num_blocks, block_size, settings["max_model_len"], reserve)
        scheduler = IterationScheduler(allocator=allocator, **settings)
    clock = StubClock()
    return Engine(scheduler, StubRunner(clock), clock)


def request(name: str, prompt: int = 3, max_tokens: int = 4, *, arrival: float | None = None, **more) -> Request:
    params = SamplingParams(max_tokens=max_tokens, **{k: more.pop(k) for k in list(more) if k in PARAMS})
    return Request([5] * prompt, params, name, arrival=arrival, **more)


PARAMS = SamplingParams.__dataclass_fields__.keys()


def check_invariants(engine: Engine) -> None:
    """DESIGN's invariants that hold after every step, at the stages without preemption."""
    scheduler = engine.scheduler
    running, waiting = scheduler.running, list(scheduler.waiting)
    assert set(scheduler.requests.values()) == set(running) | set(waiting)
    assert len(running) <= scheduler.max_num_seqs
    assert all(request.status == "running" for request in running)
    assert all(request.status == "waiting" and not request.block_table for request in waiting)
    for request in running:
        assert request.gap == 1, "its keys and values are all there, but for the token that was just sampled"
        assert request.num_tokens < request.max_len <= scheduler.max_model_len
    lanes = [request.lane for request in (getattr(scheduler, "batch", None) or running)]
    assert sorted(lanes + scheduler.free_lanes) == list(range(scheduler.max_num_seqs))
    allocator = scheduler.allocator
    if allocator:
        owned = [block for request in running for block in request.block_table]
        assert len(owned) == len(set(owned)), "a block has one owner"
        assert all(0 <= block < allocator.num_blocks for block in owned)
        assert len(owned) + allocator.free == allocator.num_blocks
        assert all(len(r.block_table) * allocator.block_size >= r.num_computed for r in running)
    if not engine.has_work:
        assert not running and not waiting and (not allocator or allocator.free == allocator.num_blocks)
