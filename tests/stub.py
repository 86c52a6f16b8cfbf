"""A runner without a model, and a clock without time: what the schedulers decide, in microseconds and without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from minibatcher.engine import Engine
from minibatcher.plan import Plan
from minibatcher.request import Request, SamplingParams
from minibatcher.schedulers.base import RANK, Scheduler
from minibatcher.schedulers.preemptive import PreemptiveScheduler
from minibatcher.stages import STAGES
from minibatcher.trace import Preemption, StepRecord, Work


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


def engine(
    stage: str,
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    reserve: str = "max_tokens",
    scheduler: type[Scheduler] | None = None,
    **settings,
) -> Engine:
    """An engine of any stage. scheduler: a test's own, in the place of the stage's."""
    settings = {"max_num_seqs": 3, "max_model_len": 64, "eos_token_ids": [1], "vocab_size": 100} | settings
    parts = STAGES[stage]
    if parts.allocator:
        pool = {"num_blocks": num_blocks, "block_size": block_size, "max_model_len": settings["max_model_len"]}
        settings["allocator"] = parts.allocator(pool | {"reserve": reserve})
    clock = StubClock()
    return Engine((scheduler or parts.scheduler)(**settings), StubRunner(clock), clock)


def request(name: str, prompt: int = 3, max_tokens: int = 4, *, arrival: float | None = None, **more) -> Request:
    params = SamplingParams(max_tokens=max_tokens, **{k: more.pop(k) for k in list(more) if k in PARAMS})
    return Request([5] * prompt, params, name, arrival=arrival, **more)


PARAMS = SamplingParams.__dataclass_fields__.keys()


def drain(engine: Engine, added: Iterable[Request] | None = None, limit: int = 1000) -> list[StepRecord]:
    """Step until nothing is left; the invariants hold after every step. added: as for `check_invariants`."""
    records = []
    while engine.has_work:
        records.append(engine.step())
        check_invariants(engine, added)
        assert len(records) < limit, "the engine does not come to an end"
    return records


# -- what holds after every step --------------------------------------------------------------------------------------


def check_invariants(engine: Engine, added: Iterable[Request] | None = None) -> None:
    """DESIGN's invariants that hold after every step, at every stage. added: all requests that it was ever given."""
    scheduler = engine.scheduler
    running, waiting = scheduler.running, scheduler.waiting
    assert running == sorted(running, key=RANK) and waiting == sorted(waiting, key=RANK)
    assert len(running) + len(waiting) == len(scheduler.requests), "nobody is lost, and nobody is there twice"
    assert set(running) | set(waiting) == set(scheduler.requests.values())
    if added is not None:
        future = {request for _, _, request in engine._future}
        assert {made for made in added if made.finish_reason is None} == set(scheduler.requests.values()) | future
        for made in added:
            if made.finish_reason is not None:
                assert made.status == "finished" and not made.block_table and not made.cpu_block_table
    assert len(running) <= scheduler.max_num_seqs
    lanes = [made.lane for made in (getattr(scheduler, "batch", None) or running)]
    assert sorted(lanes + scheduler.free_lanes) == list(range(scheduler.max_num_seqs))
    for made in running:
        assert made.status == "running" and not made.cpu_block_table
        assert 0 < made.num_computed < made.num_tokens < made.max_len <= scheduler.max_model_len
        # Without chunks, all is computed but the token that was just sampled.
        assert made.gap == 1 or hasattr(scheduler, "max_num_batched_tokens")
    for made in waiting:
        _check_waiting(scheduler, made)
    if scheduler.allocator:
        _check_pool(scheduler)
    budget = getattr(scheduler, "max_num_batched_tokens", None)
    if engine.trace.records:
        record = engine.trace[-1]
        assert record.budget == (budget if record.work else record.budget)
        assert budget is None or sum(work.tokens for work in record.work) <= budget
    if not engine.has_work:
        assert not running and not waiting


def _check_waiting(scheduler: Scheduler, made: Request) -> None:
    assert not made.block_table
    if made.status == "swapped":
        assert 0 < made.num_computed < made.num_tokens
        assert len(made.cpu_block_table) == scheduler.allocator.blocks_for(made.num_computed)
    else:
        assert made.num_computed == 0 and not made.cpu_block_table
        assert made.status == "preempted" or (made.status == "waiting" and not made.output_token_ids)


def _check_pool(scheduler: Scheduler) -> None:
    allocator = scheduler.allocator
    owners = Counter(block for made in scheduler.running for block in made.block_table)
    assert len(owners) + allocator.free == allocator.num_blocks, "free + used == total"
    assert owners.keys() <= set(range(allocator.num_blocks))
    assert all(n == 1 for n in owners.values()), "a block has one writer"
    if hasattr(allocator, "ref_counts"):
        assert allocator.ref_counts == [owners[block] for block in range(allocator.num_blocks)]
    on_demand = hasattr(scheduler, "watermark_blocks")
    for made in scheduler.running:
        owned = len(made.block_table)
        assert owned * allocator.block_size >= made.num_computed
        if on_demand:  # the block of the token that was just sampled is taken when it is computed
            assert allocator.blocks_for(made.num_tokens - 1) <= owned <= allocator.blocks_for(made.num_tokens)
        else:
            assert owned == allocator.blocks_for(allocator.reservation(made))
    if cpu := getattr(scheduler, "cpu", None):
        copies = Counter(block for made in scheduler.waiting for block in made.cpu_block_table)
        assert cpu.ref_counts == [copies[block] for block in range(cpu.num_blocks)], "CPU blocks: the swapped own them"
        assert cpu.free == cpu.num_blocks - len(copies)


# -- what holds for every plan of stages 5 and 6 ----------------------------------------------------------------------


def check_plan(scheduler: Scheduler, plan: Plan) -> None:
    """Decodes first, then prompts, then those who join, each by rank and as much as fits. Call it from `before`."""
    joined = [*plan.admitted, *plan.resumed]
    stay = [made for made in scheduler.running if made not in joined]
    decodes = [made for made in stay if made.gap == 1]
    prompts = [made for made in stay if made.gap > 1]
    order = [*decodes, *prompts, *sorted(joined, key=RANK)]
    threshold = scheduler.long_prefill_token_threshold or scheduler.max_model_len
    left, expected = scheduler.max_num_batched_tokens, []
    for made in order:
        expected.append((made, min(made.gap, threshold, left)))
        left -= expected[-1][1]
    assert list(plan.work.items()) == [(made, n) for made, n in expected if n]
    assert plan.budget == left >= 0
    assert set(decodes + joined) <= plan.work.keys(), "no decode is left out, and nobody joins for nothing"
    for made in plan.work:
        assert len(made.block_table) == scheduler.allocator.blocks_for(
            made.num_tokens if hasattr(scheduler, "watermark_blocks") else scheduler.allocator.reservation(made)
        )
    if scheduler.waiting:
        _check_left_out(scheduler, plan, scheduler.waiting[0])
        assert all(made.rank < scheduler.waiting[0].rank for made in joined), "nobody overtakes"
    else:
        assert plan.waiting is None
    if plan.preempted:
        _check_victims(scheduler, plan, stay)
    for swap in plan.swap_in:  # the copy has not been made yet
        assert all(scheduler.cpu.ref_counts[block] == 1 for block in swap.source)
    copied = [block for swap in plan.swap_out for block in swap.target] + [b for s in plan.swap_in for b in s.source]
    assert len(copied) == len(set(copied)), "no copy out writes what is still to be copied in"


def _check_left_out(scheduler: Scheduler, plan: Plan, head: Request) -> None:
    """The first who waits could not join, for the reason that is told."""
    who, why, behind = plan.waiting
    assert (who, behind) == (head, len(scheduler.waiting) - 1)
    if why.startswith("all "):
        assert not scheduler.free_lanes
    elif "budget" in why:
        assert plan.budget == 0
    elif why == "it gave way in this step":
        assert head in plan.preempted
    elif "just gave way" in why:
        assert any(gone.cause == "memory" for gone in plan.preempted.values())
    else:
        allocator, spare = scheduler.allocator, getattr(scheduler, "watermark_blocks", 0) if scheduler.running else 0
        on_demand = hasattr(scheduler, "watermark_blocks")
        needs = allocator.blocks_for(head.num_tokens if on_demand else allocator.reservation(head))
        also = f" and {spare} to spare" if spare else ""
        assert why == f"needs {needs} blocks{also}, {allocator.free} free"
        assert needs + spare > allocator.free


def _check_victims(scheduler: Scheduler, plan: Plan, stay: list[Request]) -> None:
    """Who gave way for a block ranked last; who gave way for a place was needed, and the place was taken."""
    blocks_for, first = scheduler.allocator.blocks_for, min([*plan.admitted, *plan.resumed], key=RANK, default=None)
    lanes = scheduler.max_num_seqs - len(stay)
    blocks = scheduler.allocator.num_blocks - sum(blocks_for(made.num_tokens) for made in stay)
    for victim, told in plan.preempted.items():
        assert victim not in plan.work and victim in scheduler.waiting and told.id == victim.request_id
        assert (told.mode == "swap") == (victim.status == "swapped")
        if told.cause == "memory":
            assert all(made.rank < victim.rank for made in scheduler.running)
            assert not plan.admitted and not plan.resumed
        elif told.cause in ("turn", "priority"):
            assert first is not None, "in vain"
            assert first.rank < victim.rank if told.cause == "turn" else first.rank[0] < victim.rank[0]
            spare = blocks - blocks_for(victim.num_tokens) - blocks_for(first.num_tokens)
            assert lanes == 1 or spare < scheduler.watermark_blocks, "needless"


# -- what a whole trace tells -----------------------------------------------------------------------------------------


def replay(records: Iterable[StepRecord]) -> dict[str, list[int]]:
    """The block tables after these steps, from `record.blocks` alone. Fails when a block is given to two."""
    tables: dict[str, list[int]] = {}
    taken: set[int] = set()
    for record in records:
        for id, move, blocks in record.blocks:
            if move == "take":
                assert not taken & set(blocks), f"{id} takes blocks that others hold"
                tables.setdefault(id, []).extend(blocks)
                taken.update(blocks)
            else:
                assert move == "free" and tables.pop(id) == blocks, f"{id} gives back what it did not hold"
                taken.difference_update(blocks)
    return tables


@dataclass
class Story:
    """What a trace has told of one request so far; each new event must fit in."""

    made: Request
    status: str = "waiting"
    cache: int = 0  # tokens with keys and values
    highest: int = 0  # the most that there ever were
    lost: int = 0
    told: int = 0  # output tokens
    computed: Counter[str] = field(default_factory=Counter)  # tokens, by kind of work

    def gives_way(self, gone: Preemption) -> None:
        assert self.status == "running" and gone.why
        if gone.mode == "swap":
            assert gone.tokens == 0 and gone.blocks > 0
            self.status = "swapped"
        else:
            assert (gone.mode, gone.tokens, gone.blocks) == ("recompute", self.cache, 0)
            self.status, self.lost, self.cache = "preempted", self.lost + self.cache, 0

    def joins(self, *before: str) -> None:
        assert self.status in before
        self.status = "running"

    def works(self, item: Work) -> None:
        """Recompute up to where it once was; then the prompt; then one token after the other."""
        assert self.status == "running"
        start, self.cache = self.cache, self.cache + item.tokens
        assert item.tokens > 0 and item.context == self.cache
        if item.kind == "recompute":
            assert self.cache <= self.highest
        elif item.kind == "prefill":
            assert start == self.highest and self.cache <= self.made.num_prompt_tokens
        else:
            assert item.kind == "decode" and item.tokens == 1
            assert start == self.highest >= self.made.num_prompt_tokens
        self.highest = max(self.highest, self.cache)
        self.computed[item.kind] += item.tokens

    def emits(self, tokens: list[int]) -> None:
        assert self.status == "running"
        assert self.cache == self.made.num_prompt_tokens + self.told, "all before the new token is in the cache"
        assert tokens == [self.made.token_ids[self.cache]]
        self.told += 1

    def ends(self, reason: str) -> None:
        assert self.status != "finished" and self.made.finish_reason == reason
        self.status = "finished"
        assert self.told == len(self.made.output_token_ids)
        if reason in ("stop", "length"):  # each token once, and again as often as it was lost
            assert self.computed["prefill"] == self.made.num_prompt_tokens
            assert self.computed["decode"] == self.told - 1
            assert self.computed["recompute"] == self.lost
        assert self.computed["recompute"] <= self.lost


def check_trace(records: list[StepRecord], added: Iterable[Request]) -> dict[str, Story]:
    """A whole run: every request arrives once and ends once, and what is told in between is one consistent story."""
    stories = {made.request_id: Story(made) for made in added}
    arrived = Counter(arrival.id for record in records for arrival in record.arrived)
    assert arrived == Counter(stories.keys()), "each arrives once"
    assert not replay(records), "all blocks came back"
    for record in records:
        for gone in record.preempted:
            stories[gone.id].gives_way(gone)
        for id in record.admitted:
            stories[id].joins("waiting")
        for id in record.resumed:
            stories[id].joins("preempted", "swapped")
        for item in sorted(record.work, key=lambda item: item.context):  # what was lost comes before what is new
            if item.kind != "wasted":
                stories[item.id].works(item)
        for id, tokens in record.emitted.items():
            stories[id].emits(tokens)
        for id, reason in record.finished:
            stories[id].ends(reason)
    assert all(story.status == "finished" for story in stories.values()), "each ends"
    return stories


# -- a hook that the product does not have ----------------------------------------------------------------------------


class Forced(PreemptiveScheduler):
    """Preempts whom `force` names at the beginning of a step, as long as somebody else goes on."""

    force: Callable[[Request], bool] = staticmethod(lambda request: False)

    def make_way(self, plan: Plan) -> None:
        super().make_way(plan)
        for made in list(self.running):
            if len(self.running) > 1 and self.force(made):
                self.preempt(plan, made, "test", "the test wants it")
