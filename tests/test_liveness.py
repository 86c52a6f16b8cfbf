"""The engine never gets stuck, and whatever happens to a request, its tokens are those that it gives alone.

Two properties. On a stub model, in thousands of random workloads: everyone ends, once. On a real one, in random
traffic with preemptions that are forced on it: the output is the output.
"""

from __future__ import annotations

import math
import random
from functools import cache

import pytest
import real
from architectures import build, prompt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stub import StubClock, check_invariants, check_plan, check_trace, engine, request

from minibatcher import Request, SamplingParams

MAX_STEPS = 30_000  # 24 requests of 40 tokens, if each token costs a turn in which all before it is computed again


# -- random workloads on a stub ---------------------------------------------------------------------------------------


def random_engine(rng: random.Random, stage: str):
    """Tiny pools, down to the smallest that is legal; budgets from the number of lanes up."""
    block_size, max_model_len, lanes = rng.choice([1, 2, 3, 4, 7, 16]), rng.randint(2, 40), rng.randint(1, 6)
    smallest = -(-max_model_len // block_size)
    chosen = {
        "block_size": block_size,
        "max_model_len": max_model_len,
        "num_blocks": max(smallest, rng.choice([1, 1, rng.randint(1, 30)])),
        "max_num_seqs": lanes,
        "max_num_batched_tokens": lanes + rng.choice([0, 0, 1, rng.randint(0, 60)]),
        "long_prefill_token_threshold": rng.choice([0, 0, 1, rng.randint(1, 9)]),
    }
    if stage == "preemptive":
        chosen["watermark"] = rng.choice([0.01, 0.0, 0.3, rng.uniform(0, 0.99)])
        chosen["max_tokens_per_turn"] = rng.choice([None, None, 1, rng.randint(1, 9)])
        if rng.random() < 0.5:
            chosen |= {"preemption": "swap", "num_cpu_blocks": rng.choice([None, 0, 1, rng.randint(0, 20)])}
        if rng.random() < 0.5:
            chosen |= {"policy": "priority", "aging_s": rng.choice([None, rng.uniform(0.5, 50)])}
    return engine(stage, **chosen)


def random_request(rng: random.Random, eng, name: str) -> Request:
    scheduler = eng.scheduler
    return request(
        name,
        prompt=rng.randint(1, scheduler.max_model_len - 1),
        max_tokens=rng.randint(1, 24),
        arrival=rng.choice([None, eng.clock.now() + rng.uniform(-3, 20)]),
        priority=rng.randint(-2, 3) if scheduler.by_priority else 0,
        deadline_s=rng.choice([None, None, None, rng.uniform(0.1, 40)]),
    )


def serve_at_random(seed: int, stage: str) -> None:
    """Adds, aborts and steps in any order, then steps to the end; everything is checked after each of them."""
    rng = random.Random(seed)
    eng = random_engine(rng, stage)
    eng.runner.before = lambda plan: check_plan(eng.scheduler, plan)
    chance_of_an_end = rng.choice([0, 0, 0.1])
    eng.runner.token = lambda made: 1 if rng.random() < chance_of_an_end else 10
    added, aborted, most = [], set(), rng.randint(1, 10)
    moves = rng.choices(["add", "abort", "step"], weights=[35, 5, 60], k=rng.randint(1, 40))
    while moves or eng.has_work:
        move = moves.pop() if moves else "step"
        if move == "add" and len(added) < most:
            added.append(random_request(rng, eng, f"r{len(added)}"))
            eng.add(added[-1])
        elif move == "abort" and added:
            aborted.add(made := rng.choice(added))
            eng.abort(made.request_id)
        elif eng.has_work:
            eng.step()
            assert len(eng.trace) < MAX_STEPS, "the engine does not come to an end"
        check_invariants(eng, added)
    check_trace(eng.trace.records, added)
    for made in added:
        assert made.finish_reason in ("stop", "length") or made in aborted or made.deadline_s is not None


@pytest.mark.parametrize(("stage", "first", "workloads"), [("chunked", 0, 1500), ("preemptive", 0, 10_000)])
def test_every_request_ends_exactly_once(stage, first, workloads):
    for seed in range(first, first + workloads):
        try:
            serve_at_random(seed, stage)
        except BaseException as error:
            error.add_note(f"serve_at_random({seed}, {stage!r})")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["chunked", "preemptive"])
def test_every_request_ends_exactly_once_in_many_more(stage):
    test_every_request_ends_exactly_once(stage, 10_000, 20_000)


# -- overload ---------------------------------------------------------------------------------------------------------


def overload(seed: int, share_of_time: float, *, lanes: int, num_blocks: int, block_size: int, **settings):
    """300 requests of log-normal lengths, all of them within a share of the time that they take if none has to wait
    for another's arrival. Half of their memory at its highest would be several times the pool.
    """
    rng, capacity = random.Random(seed), num_blocks * block_size

    def length() -> int:
        return max(1, min(capacity // 4, round(math.exp(rng.gauss(math.log(30), 1)))))

    def run(seconds: float):
        eng = engine(
            "preemptive", max_num_seqs=lanes, num_blocks=num_blocks, block_size=block_size, max_model_len=capacity // 2,
            **settings,
        )  # fmt: skip
        served = [request(f"r{n}", *shape, arrival=seconds * when) for n, (*shape, when) in enumerate(shapes)]
        trace = eng.run(served)
        check_trace(trace.records, served)
        return trace, served

    shapes = [(length(), length(), rng.random()) for _ in range(300)]
    seconds = run(0.0)[0][-1].t1
    return run(seconds * share_of_time)


POOLS = {
    "few large blocks": {"lanes": 16, "num_blocks": 40, "block_size": 16},
    "many small blocks": {"lanes": 32, "num_blocks": 200, "block_size": 4},
    "more lanes than memory": {"lanes": 64, "num_blocks": 64, "block_size": 8},
}


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("threshold", [0, 16])
@pytest.mark.parametrize("pool", POOLS)
def test_ten_times_overload_does_not_thrash(pool, threshold, mode):
    """Where the loop visited the evicted again, one such workload saw 100,000 preemptions and no completion."""
    trace, served = overload(
        1, 0.1, **POOLS[pool], preemption=mode, max_num_batched_tokens=128, long_prefill_token_threshold=threshold
    )
    assert all(made.finish_reason == "length" for made in served)
    assert sum(made.num_preemptions > 0 for made in served) >= 0.05 * len(served), "else the pool did not fill"
    assert max(made.num_preemptions for made in served) <= 8
    computed = sum(work.tokens for record in trace for work in record.work)
    needed = sum(made.num_tokens - 1 for made in served)  # the last token is never computed
    assert computed <= 1.5 * needed
    assert mode == "recompute" or computed == needed


# -- random traffic on a real model -----------------------------------------------------------------------------------

alone = cache(lambda name: real.Alone(build(name)))
some = st.sampled_from
CHOICES = st.fixed_dictionaries(
    {
        "block_size": some([1, 2, 3, 4, 5, 7, 8, 11, 16]),
        "max_model_len": some([2, 9, 16, 24, 32, 32, 32]),
        "spare_blocks": some([0, 0, 1, 2, 5]),
        "max_num_seqs": some([1, 2, 3, 4, 5, 6]),
        "spare_budget": some([0, 0, 1, 5, 40]),
        "long_prefill_token_threshold": some([0, 0, 1, 4]),
        "watermark": some([0.0, 0.0, 0.01, 0.3]),
        "max_tokens_per_turn": some([None, None, None, None, None, 1, 4]),
    }
)
SWAP = some([{}, {}, *({"preemption": "swap", "num_cpu_blocks": n} for n in (None, None, 1, 5))])
POLICY = some([{}, {}, *({"policy": "priority", "aging_s": s} for s in (None, 3.0))])
SAMPLING = some(
    [{"temperature": 0}, {"temperature": 0, "ignore_eos": True}, {"seed": 7}, {"seed": 8, "ignore_eos": True}]
)


class Serving(RuleBasedStateMachine):
    """Adds, aborts, deadlines, steps, and preemptions at any time. What is free is NaN after every step."""

    @initialize(name=st.sampled_from(["llama", "mistral"]), chosen=CHOICES, swap=SWAP, policy=POLICY)
    def begin(self, name, chosen, swap, policy):
        smallest = -(-chosen["max_model_len"] // chosen["block_size"])
        chosen |= {"num_blocks": smallest + chosen.pop("spare_blocks")}
        chosen |= {"max_num_batched_tokens": chosen["max_num_seqs"] + chosen.pop("spare_budget")}
        self.alone, self.added = alone(name), []
        self.engine = real.engine(build(name), StubClock(), **chosen, **swap, **policy)

    @precondition(lambda self: len(self.added) <= 20)
    @rule(
        lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4),
        max_tokens=st.integers(1, 20),
        sampling=SAMPLING,
        priority=st.integers(0, 2),
        deadline_s=some([None] * 9 + [2, 9]),
        later=some([None, None, 0, 3]),
    )
    def add(self, lengths, max_tokens, sampling, priority, deadline_s, later):
        scheduler, now = self.engine.scheduler, self.engine.clock.now()
        for n, length in enumerate(lengths):
            made = Request(
                prompt(min(length, scheduler.max_model_len - 1), 4),
                SamplingParams(max_tokens + n, **sampling),
                priority=(priority + n) % 3 if scheduler.by_priority else 0,
                deadline_s=deadline_s,
                arrival=None if later is None else now + later,
            )
            self.engine.add(made)
            self.added.append(made)

    @precondition(lambda self: len(self.added) % 5 == 4)
    @rule(which=st.integers(0, 99))
    def abort(self, which):
        made = self.added[which % len(self.added)]
        alive, told = made.finish_reason is None, made.output_token_ids
        assert self.engine.abort(made.request_id) == alive
        assert made.output_token_ids == told

    @rule(steps=st.integers(1, 4))
    def go_on(self, steps):
        for _ in range(steps):
            self.step()

    @rule(places=some([(0,), (1,), (2,), (3,), (0, 1), (1, 2, 3), (0, 1, 2, 3)]))
    def force(self, places):
        """Some of those who run have to give way; one always goes on."""
        running = self.engine.scheduler.running
        victims = {running[place] for place in places if place < len(running)}
        self.engine.scheduler.force = victims.__contains__
        self.step()
        self.engine.scheduler.force = set().__contains__

    def step(self):
        if self.engine.has_work:
            self.engine.step()
            self.engine.clock.time += 1.0
            real.poison(self.engine)

    @invariant()
    def all_is_in_order(self):
        if hasattr(self, "engine"):
            check_invariants(self.engine, self.added)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        while self.engine.has_work:
            self.step()
            self.all_is_in_order()
            assert len(self.engine.trace) < MAX_STEPS
        check_trace(self.engine.trace.records, self.added)
        for made in self.added:
            self.alone.check(made)
            output, longest = made.output_token_ids, self.engine.scheduler.max_model_len - made.num_prompt_tokens
            if made.finish_reason == "length":
                assert len(output) == min(made.params.max_tokens, longest)
            if not made.params.ignore_eos:
                assert 1 not in output[:-1] and (made.finish_reason == "stop") == (output[-1:] == [1])


class ServingForLong(Serving):
    """The same, for minutes."""


Serving.TestCase.settings = settings(max_examples=80, stateful_step_count=25)
ServingForLong.TestCase.settings = settings(max_examples=400, stateful_step_count=40)
TestServing = Serving.TestCase
TestServingForLong = pytest.mark.slow(ServingForLong.TestCase)
