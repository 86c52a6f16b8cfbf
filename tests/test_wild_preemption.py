"""Public bug reports of other engines about capacity, chunks and preemption; each as a kind, swept.

The numbers are those of the list that the project keeps; test_wild_bugs.py has the others.

     1  test_what_the_pool_could_never_hold_is_refused_when_it_is_added
     2  test_an_output_that_does_not_fit_ends_with_length_at_capacity
     3  test_one_that_outgrows_the_pool_alone_ends_and_the_others_go_on
     4  test_work_of_which_nothing_is_scheduled_raises
     5  test_nobody_holds_a_place_without_being_served
     6  test_any_budget_serves_any_prompt, test_a_stage_without_chunks_has_no_budget
     7  test_a_prompt_that_is_too_long_is_in_nobodys_way
     8  test_the_head_of_the_line_holds_up_the_small_ones_no_longer_than_those_who_run
    10  test_steady_arrivals_do_not_starve_the_streams
    17  test_a_request_cancelled_between_two_chunks_emits_nothing
    20  test_a_victim_was_never_scheduled_in_its_step
    21  test_liveness.py and test_stage6_preemptive.py; test_the_output_is_complete_after_recompute
    22  test_the_token_of_a_resumed_prefill_is_not_dropped
    23  test_nothing_is_inferred_from_the_number_of_output_tokens
    24  test_a_seed_is_not_begun_anew_on_resume
    25  test_a_preempted_request_keeps_its_place_among_equals
    26  test_nobody_is_admitted_before_those_who_are_swapped_out
    27  test_decodes_that_need_a_block_at_the_same_time_exhaust_nothing
    28  test_the_evicted_are_not_visited_again; test_liveness.py: test_ten_times_overload_does_not_thrash
    43  test_prompt_tokens_are_counted_once
    44  test_throughput_counts_each_output_token_once
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import real
from architectures import build, prompt
from stub import Forced, check_invariants, check_plan, check_trace, drain, engine, request

from minibatcher import Request, SamplingParams, build_engine
from minibatcher.measure.metrics import requests as metrics_of
from minibatcher.measure.metrics import summary
from minibatcher.stages import STAGES

BLOCK = 4
MODES = pytest.mark.parametrize("mode", ["recompute", "swap"])
WITH_BLOCKS = pytest.mark.parametrize("stage", [stage for stage in STAGES if STAGES[stage].allocator])
CHUNKED = pytest.mark.parametrize("stage", ["chunked", "preemptive"])


def checked(stage, **settings):
    eng = engine(stage, block_size=BLOCK, **settings)
    if stage in ("chunked", "preemptive"):
        eng.runner.before = lambda plan: check_plan(eng.scheduler, plan)
    return eng


def serve(eng, served):
    eng.add_all(served)
    drain(eng, served)
    check_trace(eng.trace.records, served)
    return eng.trace.records


def crowded(mode, seed=0, **settings):
    """A pool that fills again and again, and 12 requests for it."""
    rng = random.Random(seed)
    pool = {"num_blocks": 10, "max_model_len": 40, "max_num_seqs": 5, "max_num_batched_tokens": 24}
    eng = checked("preemptive", preemption=mode, **(pool | settings))
    return eng, [request(f"r{n}", rng.randint(1, 20), rng.randint(1, 20)) for n in range(12)]


# -- capacity ---------------------------------------------------------------------------------------------------------


@WITH_BLOCKS
@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_what_the_pool_could_never_hold_is_refused_when_it_is_added(stage, blocks):
    """It was retried for ever in vllm-project/vllm#35541. Both numbers are told, and the engine goes on."""
    capacity = blocks * BLOCK
    with pytest.raises(ValueError, match=f"max_model_len={capacity + 1} is more than the pool holds.*= {capacity} tok"):
        checked(stage, num_blocks=blocks, max_model_len=capacity + 1)
    eng = checked(stage, num_blocks=blocks, max_model_len=capacity)
    for length in (capacity, capacity + 1, 5 * capacity):
        with pytest.raises(ValueError, match=f"has {length} tokens; with max_model_len={capacity}"):
            eng.add(request("too long", prompt=length))
    served = [request("longest", prompt=capacity - 1), request("next", 1, 1)]
    serve(eng, served)
    assert [made.finish_reason for made in served] == ["length", "length"]


@WITH_BLOCKS
@pytest.mark.parametrize("length", range(1, 12))
def test_an_output_that_does_not_fit_ends_with_length_at_capacity(stage, length):
    """The prompt fits, prompt + max_tokens does not: vllm-project/vllm#39734 hung."""
    eng = checked(stage, num_blocks=3, max_model_len=12)
    served = [request("a", length, 500), request("b", length, 500)]
    serve(eng, served)
    assert [(made.num_tokens, made.finish_reason) for made in served] == [(12, "length")] * 2


@MODES
@pytest.mark.parametrize("blocks", range(1, 7))
def test_one_that_outgrows_the_pool_alone_ends_and_the_others_go_on(blocks, mode):
    """A single sequence outgrew the pool and an assertion killed the engine: GeeeekExplorer/nano-vllm#274."""
    eng = checked("preemptive", num_blocks=blocks, max_model_len=blocks * BLOCK, preemption=mode, watermark=0.0)
    served = [request("a", 1, 500), request("b", 2, 500), request("c", 1, 2)]
    serve(eng, served)
    assert [made.num_tokens for made in served] == [blocks * BLOCK, blocks * BLOCK, 3]
    assert all(made.finish_reason == "length" for made in served)


@pytest.mark.parametrize("leak", ["lanes", "blocks"])
@WITH_BLOCKS
def test_work_of_which_nothing_is_scheduled_raises(stage, leak):
    """Nothing ran, some waited, and nothing happened any more: vllm-project/vllm#45414. Here lanes or blocks are lost,
    as if they had never come back; the engine says so, with the reason.
    """
    eng = engine(stage, max_num_seqs=1, num_blocks=4, max_model_len=16)
    if leak == "lanes":
        eng.scheduler.free_lanes.clear()
    else:
        eng.scheduler.allocator.take(4)
    eng.add(request("a"))
    why = {"lanes": "all 1 lanes are taken", "blocks": "needs . blocks.* free"}[leak]
    with pytest.raises(RuntimeError, match=f"scheduled nothing.*request 'a' waits: {why}"):
        eng.step()


@CHUNKED
@pytest.mark.parametrize("seed", range(10))
def test_nobody_holds_a_place_without_being_served(stage, seed):
    """Requests that could not run occupied the places of those that could: vllm-project/vllm#53130.

    Who waits holds neither lane nor block; who joins is computed in the same step; and of those who run, only prompts
    may be left out, when the budget is spent.
    """
    rng = random.Random(seed)
    eng = checked(stage, num_blocks=12, max_model_len=48, max_num_seqs=4, max_num_batched_tokens=10)
    eng.add_all([request(f"r{n}", rng.randint(1, 30), rng.randint(1, 15)) for n in range(10)])
    while eng.has_work:
        record = eng.step()
        check_invariants(eng)
        served = {work.id for work in record.work}
        assert {*record.admitted, *record.resumed} <= served
        idle = [made for made in eng.scheduler.running if made.request_id not in served]
        assert all(made.gap > 1 for made in idle)
        assert not idle or sum(work.tokens for work in record.work) == record.budget


@CHUNKED
@pytest.mark.parametrize("threshold", [0, 1, 3])
@pytest.mark.parametrize("budget", [3, 4, 7, 31, 32, 33, 64])
def test_any_budget_serves_any_prompt(stage, budget, threshold):
    """A budget smaller than the longest prompt was a livelock in tenstorrent/vllm#436. Here prompts come in chunks."""
    eng = checked(stage, max_num_batched_tokens=budget, long_prefill_token_threshold=threshold)
    served = [request(f"p{length}", length, 2) for length in (1, 2, 31, 32, 33, 62, 5)]
    serve(eng, served)
    assert all(made.finish_reason == "length" for made in served)


def test_a_stage_without_chunks_has_no_budget(tiny):
    """And a budget that could not serve a decode in each lane is refused."""
    for stage in ("static", "iteration", "paged"):
        with pytest.raises(ValueError, match=f"max_num_batched_tokens=8: stage '{stage}' does not use it"):
            build_engine(stage, tiny, max_num_batched_tokens=8)
    for stage in ("chunked", "preemptive"):
        for lanes, budget in ((2, 1), (16, 15), (100, 0)):
            with pytest.raises(ValueError, match=f"max_num_batched_tokens={budget} is less than max_num_seqs={lanes}"):
                build_engine(stage, tiny, max_num_seqs=lanes, max_num_batched_tokens=budget)


@WITH_BLOCKS
@pytest.mark.parametrize("place", range(4))
def test_a_prompt_that_is_too_long_is_in_nobodys_way(stage, place):
    """It blocked everything behind it in vllm-project/vllm#765. It is refused: in a list with the list, else alone."""
    eng = checked(stage, num_blocks=4, max_model_len=16)
    served = [request(f"r{n}", 3, 2) for n in range(3)]
    batch = [*served[:place], request("too long", 16), *served[place:]]
    with pytest.raises(ValueError, match="'too long'"):
        eng.add_all(batch)
    assert not eng.has_work
    for made in batch:
        if made.request_id == "too long":
            with pytest.raises(ValueError, match="'too long'"):
                eng.add(made)
        else:
            eng.add(made)
    drain(eng, served)
    check_trace(eng.trace.records, served)


@WITH_BLOCKS
@pytest.mark.parametrize("remaining", [3, 7, 12])
def test_the_head_of_the_line_holds_up_the_small_ones_no_longer_than_those_who_run(stage, remaining):
    """A big request blocks small ones behind it: vllm-project/vllm#31731. First come, first served means that.

    The bound: it gets its place when those who run have ended at the latest, and the small ones go in with it.
    """
    eng = checked(stage, num_blocks=12, max_model_len=48, max_num_seqs=4)
    runs, big = request("runs", 13, remaining + 1, arrival=0.0), request("big", 30, 2, arrival=1.0)
    small = [request(f"small{n}", 2, 1, arrival=1.0) for n in range(2)]
    eng.add_all([runs, big, *small])
    eng.step()
    record = eng.step()
    assert (record.waiting.id, record.waiting.behind) == ("big", 2)
    assert eng.scheduler.allocator.free >= 5, "a small one takes 1"
    drain(eng)
    check_trace(eng.trace.records, [runs, big, *small])
    waits = {id: metrics.queue for id, metrics in metrics_of(eng.trace).items()}
    assert waits["big"] == waits["small0"] == waits["small1"] == remaining


# -- decodes ----------------------------------------------------------------------------------------------------------


@CHUNKED
@pytest.mark.parametrize("budget", [4, 9, 64])
def test_steady_arrivals_do_not_starve_the_streams(stage, budget):
    """Prefill first, always, starved decodes under steady arrivals: GeeeekExplorer/nano-vllm#73.

    A prompt arrives in every step. The gap between two tokens of a stream is one step of at most the budget.
    """
    eng = checked(stage, max_num_batched_tokens=budget, max_num_seqs=4, num_blocks=200, max_model_len=200)
    streams = [request(f"s{n}", 2, 60, arrival=0.0) for n in range(2)]
    newcomers = [request(f"n{n}", 1 + n % 30, 1 + n % 3, arrival=float(n)) for n in range(1, 80)]
    records = serve(eng, [*streams, *newcomers])
    for made in streams:
        steps = [record.step for record in records if made.request_id in record.emitted]
        assert all(later - earlier == 1 for earlier, later in pairwise(steps)) and len(steps) == 60
    assert max(sum(work.tokens for work in record.work) for record in records) <= budget


@CHUNKED
@pytest.mark.parametrize("when", ["between two steps", "while the model runs", "by a neighbour's on_token"])
@pytest.mark.parametrize("after", range(1, 8))
def test_a_request_cancelled_between_two_chunks_emits_nothing(stage, after, when):
    """It still emitted a token in sgl-project/sglang#34112. Here a prompt comes in five chunks, then decodes."""
    eng = checked(stage, max_num_batched_tokens=6)
    neighbour, victim = request("neighbour", 1, 20), request("victim", 25, 5)

    def cancel(token=None):
        if eng.abort("victim"):
            cancelled.append(victim.output_token_ids)
        return False

    cancelled: list[list[int]] = []
    eng.add_all([neighbour, victim])
    for _ in range(after):
        eng.step()
    if when == "between two steps":
        cancel()
    elif when == "while the model runs":
        eng.runner.before = lambda plan: cancel()
    else:
        neighbour.on_token = cancel
    check_invariants(eng)
    drain(eng)
    check_trace(eng.trace.records, [neighbour, victim])
    assert victim.finish_reason == "abort" and [victim.output_token_ids] == cancelled
    assert neighbour.finish_reason == "length"


@MODES
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_decodes_that_need_a_block_at_the_same_time_exhaust_nothing(size, mode):
    """One decode exhausted the pool and the engine died: sgl-project/sglang#19881. Here all are at a block's border."""
    for shift in range(BLOCK):
        pool = {"num_blocks": 2 * size + 1, "max_model_len": BLOCK * (2 * size + 1), "watermark": 0.0}
        eng = checked("preemptive", **pool, max_num_seqs=size, preemption=mode)
        served = [request(f"r{n}", 2 * BLOCK - shift, 6) for n in range(size)]
        serve(eng, served)
        assert all(made.finish_reason == "length" for made in served)


# -- preemption -------------------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("seed", range(15))
def test_a_victim_was_never_scheduled_in_its_step(seed, mode):
    """The victim was in the step already, and its tokens were counted: vllm-project/vllm#23347.

    vLLM gives them back. Here it cannot occur: those who may need a block are visited in order of rank, and the victim
    is the last by rank. So a plan's budget is what its work has left.
    """
    for policy in ({}, {"policy": "priority"}, {"max_tokens_per_turn": 3}):
        eng, served = crowded(mode, seed, **policy)
        preempt = eng.scheduler.preempt

        def strict(plan, victim, cause, why, preempt=preempt):
            assert victim not in plan.work
            preempt(plan, victim, cause, why)

        eng.scheduler.preempt = strict
        if "policy" in policy:
            for n, made in enumerate(served):
                made.priority, made.arrival = n * 7 % 4, n * 1.5
        records = serve(eng, served)
        assert any(record.preempted for record in records)
        for record in records:
            assert not {gone.id for gone in record.preempted} & {work.id for work in record.work}


@MODES
def test_the_output_is_complete_after_recompute(mode):
    """It was not in vllm-project/vllm#16832. A pool that fills by itself; token for token what each gives alone."""
    model, alone = build("llama"), real.Alone(build("llama"))
    eng = real.engine(
        model, preemption=mode, block_size=BLOCK, num_blocks=12, max_model_len=40, max_num_seqs=6, watermark=0.0,
        max_num_batched_tokens=30,
    )  # fmt: skip
    served = [Request(prompt(4 + n, n), SamplingParams(18, temperature=0, ignore_eos=True)) for n in range(8)]
    eng.run(served)
    assert sum(made.num_preemptions > 0 for made in served) >= 4
    for made in served:
        assert len(made.output_token_ids) == 18
        alone.check(made)


def forced(mode, name, when, **settings):
    """An engine that preempts the request `name` once, when `when` holds."""
    eng = engine("preemptive", scheduler=Forced, block_size=BLOCK, preemption=mode, **settings)
    left = [name]

    def force(made):
        return made.request_id in left and when(made) and bool(left.remove(name) or True)

    eng.scheduler.force = force
    return eng


@MODES
@pytest.mark.parametrize("length", [BLOCK, BLOCK + 1, BLOCK + 2, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_the_token_of_a_resumed_prefill_is_not_dropped(length, mode):
    """It was dropped in GeeeekExplorer/nano-vllm#217. Preempted when it has `length` tokens: at a block, one more, and
    in the middle. The step that closes the gap again emits the next token.
    """
    eng = forced(mode, "victim", lambda made: made.num_tokens == length)
    served = [request("companion", 1, 30), request("victim", 3, 12)]
    eng.add_all(served)
    drain(eng, served)
    check_trace(eng.trace.records, served)
    (back,) = (record for record in eng.trace if record.resumed)
    assert back.emitted["victim"] == [10 + length - 3]
    assert served[1].output_token_ids == list(range(10, 22))


@MODES
@pytest.mark.parametrize("outputs", range(1, 9))
def test_nothing_is_inferred_from_the_number_of_output_tokens(outputs, mode):
    """Whether a step is a prefill was answered by counting output tokens, which is wrong after a preemption:
    GeeeekExplorer/nano-vllm#144. Here a gap of many tokens is closed in chunks though outputs are there, and no token
    comes until it is closed.
    """
    eng = forced(mode, "victim", lambda made: len(made.output_token_ids) == outputs, max_num_batched_tokens=4)
    served = [request("companion", 1, 40), request("victim", 8, 10)]
    eng.add_all(served)
    drain(eng, served)
    check_trace(eng.trace.records, served)
    after = [r for r in eng.trace if r.step >= next(r.step for r in eng.trace if r.resumed) and "victim" in r.emitted]
    kinds = [work.kind for record in eng.trace for work in record.work if work.id == "victim"]
    lost = 8 + outputs - 1
    if mode == "recompute":
        assert kinds.count("recompute") == -(-lost // 3), "three a step beside the companion's one"
        assert sum(w.tokens for r in eng.trace for w in r.work if w.kind == "recompute") == lost
    else:
        assert "recompute" not in kinds
    assert sum(len(record.emitted["victim"]) for record in after) == 10 - outputs


@MODES
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_seed_is_not_begun_anew_on_resume(name, mode):
    """It was in vllm-project/vllm#19940: after a preemption the draws began again with the first."""
    alone = real.Alone(build(name))
    for outputs in range(1, 8):
        eng = real.engine(build(name), preemption=mode, block_size=BLOCK, num_blocks=30, max_model_len=40)
        victims = [Request(prompt(6, 3), SamplingParams(9, seed=seed, ignore_eos=True)) for seed in (1, 2)]
        left = set(victims)
        eng.scheduler.force = lambda made, left=left, outputs=outputs: (
            made in left and len(made.output_token_ids) == outputs and bool(left.discard(made) or True)
        )
        eng.run([Request(prompt(3, 3), SamplingParams(30, temperature=0, ignore_eos=True)), *victims])
        assert not left
        for made in victims:
            alone.check(made)


@MODES
@pytest.mark.parametrize("policy", [{}, {"policy": "priority"}, {"policy": "priority", "aging_s": 5.0}])
def test_a_preempted_request_keeps_its_place_among_equals(policy, mode):
    """It lost it to one that came later with equal priority in vllm-project/vllm#41951.

    Of equals, whoever came later is never served before: not at admission, not on return.
    """
    eng, served = crowded(mode, seed=3, **policy)
    for n, made in enumerate(served):
        made.arrival = n / 2
    records = serve(eng, served)
    assert sum(made.num_preemptions > 0 for made in served) >= 3
    came = {made.request_id: n for n, made in enumerate(served)}
    inside: set[str] = set()
    outside: set[str] = set()
    for record in records:
        outside |= {arrival.id for arrival in record.arrived} | {gone.id for gone in record.preempted}
        inside -= outside
        joined = {*record.admitted, *record.resumed}
        outside -= joined
        assert not joined or not outside or max(came[id] for id in joined) < min(came[id] for id in outside)
        inside |= joined
        assert all(came[gone.id] > max((came[id] for id in inside), default=-1) for gone in record.preempted)
        inside -= {id for id, _ in record.finished}


@pytest.mark.parametrize("cpu", [3, 6, 10])
@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_admitted_before_those_who_are_swapped_out(seed, cpu):
    """Newcomers were admitted while swapped ones waited for room, until the swap space was full:
    vllm-project/vllm#5578. Here they wait in one queue with all others, and a full CPU pool falls back to recompute.
    """
    eng, served = crowded("swap", seed, num_cpu_blocks=cpu)
    records = serve(eng, served)
    swapped: set[str] = set()
    for record in records:
        swapped |= {gone.id for gone in record.preempted if gone.mode == "swap"}
        swapped -= set(record.resumed)
        assert not record.admitted or not swapped
    assert any(gone.mode == "swap" for record in records for gone in record.preempted)


@MODES
@pytest.mark.parametrize("seed", range(10))
def test_the_evicted_are_not_visited_again(seed, mode):
    """The loop went on to visit one that had just been evicted, admitted it from zero and evicted others for it:
    inference-sim/inference-sim#349 and #529, 100,000 preemptions and no completion.

    Who gives way does not come back in the same step, and nobody often; every preemption is in the trace.
    """
    eng, served = crowded(mode, seed)
    records = serve(eng, served)
    for record in records:
        gone = [gone.id for gone in record.preempted]
        assert len(gone) == len(set(gone)) and not {*record.admitted, *record.resumed} & set(gone)
    told = [gone.id for record in records for gone in record.preempted]
    for made in served:
        assert told.count(made.request_id) == made.num_preemptions <= 8


# -- metrics ----------------------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("seed", range(3))
def test_prompt_tokens_are_counted_once(seed, mode):
    """The count of prompt tokens had those in it that were in the cache already: vllm-project/vllm#56923.

    Each figure says what it counts: prompt_tokens are the prompt's, prefill rows are those of prompts for the first
    time, recompute rows the rest.
    """
    eng, served = crowded(mode, seed)
    records = serve(eng, served)
    found = metrics_of(eng.trace)
    assert {id: metrics.prompt_tokens for id, metrics in found.items()} == {
        made.request_id: made.num_prompt_tokens for made in served
    }
    rows = {kind: 0 for kind in ("prefill", "decode", "recompute")}
    for record in records:
        for work in record.work:
            rows[work.kind] += work.tokens
    assert rows["prefill"] == sum(made.num_prompt_tokens for made in served)
    lost = sum(gone.tokens for record in records for gone in record.preempted)
    assert rows["recompute"] == lost == summary(eng.trace).recomputed_tokens
    assert (lost > 0) == (mode == "recompute")


@MODES
@pytest.mark.parametrize("seed", range(3))
def test_throughput_counts_each_output_token_once(seed, mode):
    """Recomputed tokens were counted as served in many a report. Output tokens are those that a caller gets."""
    eng, served = crowded(mode, seed)
    serve(eng, served)
    numbers = summary(eng.trace)
    outputs = sum(len(made.output_token_ids) for made in served)
    assert numbers.preemptions > 0
    assert numbers.output_tokens == outputs == sum(m.output_tokens for m in metrics_of(eng.trace).values())
    assert numbers.output_tokens_per_s == outputs / eng.clock.now()
