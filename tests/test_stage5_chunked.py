"""Stage 5: decodes first, then prompts in chunks, under a token budget."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from architectures import build, prompt
from hypothesis import given
from hypothesis import strategies as st
from oracle import check_greedy
from stub import check_invariants, check_plan, check_trace, drain, engine, request

from minibatcher import Request, SamplingParams, build_engine
from minibatcher.trace import Waiting


def chunked(budget: int, threshold: int = 0, **settings):
    return engine(
        "chunked", max_num_batched_tokens=budget, long_prefill_token_threshold=threshold, block_size=1, **settings
    )


# -- chunks by hand ---------------------------------------------------------------------------------------------------


def test_a_prompt_is_cut_by_the_budget_and_decodes_come_first():
    eng = chunked(budget=8)
    eng.run([request("a", prompt=3, max_tokens=5), request("b", prompt=12, max_tokens=2), request("c", 4, 3)])
    assert eng.runner.plans == [
        {"a": 3, "b": 5},
        {"a": 1, "b": 7},  # its prompt is in the cache: its first token comes now
        {"a": 1, "b": 1, "c": 4},
        {"a": 1, "c": 1},
        {"a": 1, "c": 1},
    ]


@pytest.mark.parametrize(
    ("budget", "length", "chunks"),
    [
        (8, 7, [7]),
        (8, 8, [8]),
        (8, 9, [8, 1]),
        (8, 16, [8, 8]),
        (8, 17, [8, 8, 1]),
        (3, 10, [3, 3, 3, 1]),  # the smallest budget for three lanes
        (100, 30, [30]),
    ],
)
def test_chunks_of_a_prompt_alone(budget, length, chunks):
    eng = chunked(budget)
    trace = eng.run([request("a", length, max_tokens=2)])
    assert [plan["a"] for plan in eng.runner.plans] == [*chunks, 1]
    assert [work.kind for record in trace for work in record.work] == ["prefill"] * len(chunks) + ["decode"]
    assert [bool(record.emitted) for record in trace] == [False] * (len(chunks) - 1) + [True, True]


def test_a_budget_of_one_token_serves_one_lane():
    eng = chunked(budget=1, max_num_seqs=1)
    eng.run([request("a", 3, 2), request("b", 2, 1)])
    assert eng.runner.plans == [{"a": 1}] * 4 + [{"b": 1}] * 2


def test_the_threshold_bounds_each_chunk_and_leaves_room_for_others():
    eng = chunked(budget=10, threshold=4)
    eng.run([request("a", prompt=9, max_tokens=2), request("b", prompt=6, max_tokens=1), request("c", 5, 1)])
    assert eng.runner.plans == [
        {"a": 4, "b": 4, "c": 2},
        {"a": 4, "b": 2, "c": 3},
        {"a": 1},  # the last token of its prompt
        {"a": 1},
    ]


def test_the_older_prompt_is_served_first_and_the_last_may_get_nothing():
    eng = chunked(budget=5, max_num_seqs=4)
    eng.run([request("a", 2, 9), request("b", prompt=7, max_tokens=1), request("c", prompt=7, max_tokens=1)])
    assert eng.runner.plans[:5] == [
        {"a": 2, "b": 3},
        {"a": 1, "b": 4},
        {"a": 1, "c": 4},
        {"a": 1, "c": 3},
        {"a": 1},
    ]
    eng = chunked(budget=5, threshold=3, max_num_seqs=4)
    eng.run([request("a", 9, 1), request("b", 9, 1), request("c", 3, 1)])
    assert eng.runner.plans == [  # c joins when there is something left for it, and not to wait in a lane
        {"a": 3, "b": 2},
        {"a": 3, "b": 2},
        {"a": 3, "b": 2},
        {"b": 3, "c": 2},
        {"c": 1},
    ]


def test_a_decode_comes_before_a_prompt_that_is_older():
    eng = chunked(budget=4, threshold=3, max_num_seqs=4)
    eng.run([request("a", prompt=9, max_tokens=1), request("b", 1, 5), request("c", prompt=3, max_tokens=2)])
    assert [list(plan.items()) for plan in eng.runner.plans[:4]] == [
        [("a", 3), ("b", 1)],
        [("b", 1), ("a", 3)],
        [("b", 1), ("a", 3)],
        [("b", 1), ("c", 3)],
    ]


def test_the_last_token_of_a_prompt_goes_with_the_decodes():
    """In order of rank: a gap of 1 is a gap of 1, whatever the token is."""
    eng = chunked(budget=4, threshold=3)
    trace = eng.run([request("a", prompt=4, max_tokens=1), request("b", prompt=1, max_tokens=3)])
    assert eng.runner.plans == [{"a": 3, "b": 1}, {"a": 1, "b": 1}, {"b": 1}]
    assert [(w.id, w.kind) for w in trace[1].work] == [("a", "prefill"), ("b", "decode")]


def test_the_trace_tells_budget_chunks_and_contexts():
    eng = chunked(budget=8)
    trace = eng.run([request("a", prompt=3, max_tokens=2), request("b", prompt=12, max_tokens=1)])
    assert [[(w.id, w.kind, w.tokens, w.context) for w in record.work] for record in trace] == [
        [("a", "prefill", 3, 3), ("b", "prefill", 5, 5)],
        [("a", "decode", 1, 4), ("b", "prefill", 7, 12)],
    ]
    assert [record.budget for record in trace] == [8, 8]
    assert trace[0].kv == {"used": 8, "total": 64, "reserved": 18 - 8, "internal": 0, "external": 0}


# -- who joins --------------------------------------------------------------------------------------------------------


def test_the_reasons_for_waiting():
    eng = chunked(budget=4, max_num_seqs=2)
    eng.add_all([request("a", 4, 4), request("b", 4, 4), request("c", 4, 4)])
    assert eng.step().waiting == Waiting("b", "the step's budget of 4 tokens is spent", 1)
    eng.step()
    assert eng.step().waiting == Waiting("c", "all 2 lanes are taken", 0)
    eng = chunked(budget=64, num_blocks=20, max_model_len=20)
    eng.add_all([request("a", 8, 4), request("b", 8, 8), request("small", 1, 1)])
    assert eng.step().waiting == Waiting(
        "b", "needs 16 blocks, 8 free", 1
    )  # nobody overtakes, though `small` would fit


def test_admission_reserves_for_max_tokens_so_nobody_asks_again():
    eng = chunked(budget=64, num_blocks=24, max_model_len=24)
    served = [request(name, 4, 8) for name in "abc"]
    trace = eng.run(served)
    assert [len(move.blocks) for record in trace for move in record.blocks] == [12] * 6
    assert [record.admitted for record in trace if record.admitted] == [["a", "b"], ["c"]]
    assert not any(record.preempted or record.resumed for record in trace)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_batched_tokens": 2}, "max_num_batched_tokens=2 is less than max_num_seqs=3.*Raise the first"),
        ({"max_num_batched_tokens": 0, "max_num_seqs": 1}, "max_num_batched_tokens=0 is less than max_num_seqs=1"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold=-1 is not allowed.*0 for no limit"),
    ],
)
def test_settings_that_could_not_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        engine("chunked", **settings)


# -- what chunks are for ----------------------------------------------------------------------------------------------


def gaps_in_tokens(trace, streams) -> list[int]:
    """Tokens computed between two tokens of a stream, over all streams."""
    clock, times = 0, {id: [] for id in streams}
    for record in trace:
        clock += sum(work.tokens for work in record.work)
        for id in record.emitted.keys() & streams:
            times[id].append(clock)
    return [later - earlier for series in times.values() for earlier, later in pairwise(series)]


@pytest.mark.parametrize("budget", [9, 32, 128, 512])
def test_a_long_prompt_no_longer_stalls_the_streams(budget):
    """Eight streams decode when a prompt of 1,500 tokens arrives. Without chunks they all wait for it, once."""
    size = {"num_blocks": 1000, "block_size": 16, "max_model_len": 2048, "max_num_seqs": 9}

    def run(stage, **more):
        eng = engine(stage, **size, **more)
        streams = {f"s{i}" for i in range(8)}
        newcomer = request("long", prompt=1500, max_tokens=2, arrival=5.0)
        trace = eng.run([*(request(id, prompt=1, max_tokens=1600, arrival=0.0) for id in streams), newcomer])
        first = next(record.step for record in trace if "long" in record.emitted)
        return max(gaps_in_tokens(trace, streams)), first

    assert run("paged") == (1508, 5)
    largest, first = run("chunked", max_num_batched_tokens=budget)
    assert largest == budget
    assert first == 5 + -(-1500 // (budget - 8)) - 1, "the price: the newcomer's first token comes later"


@given(data=st.data())
def test_no_stream_ever_misses_a_step(data):
    """Whatever arrives, a request that has its first token gets one in every step, and no step is over budget."""
    lanes = data.draw(st.integers(1, 5))
    budget = lanes + data.draw(st.integers(0, 12))
    eng = engine(
        "chunked",
        max_num_seqs=lanes,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=data.draw(st.integers(0, 6)),
        num_blocks=data.draw(st.integers(10, 40)),
        max_model_len=40,
    )
    eng.runner.before = lambda plan: check_plan(eng.scheduler, plan)
    shape = st.tuples(st.integers(1, 39), st.integers(1, 12), st.integers(0, 30))
    served = [request(f"r{i}", p, n, arrival=float(t)) for i, (p, n, t) in enumerate(data.draw(st.lists(shape)))]
    eng.add_all(served)
    records = drain(eng, served)
    for made in served:
        steps = [record.step for record in records if made.request_id in record.emitted]
        assert steps == list(range(steps[0], steps[0] + len(made.output_token_ids)))
    assert all(sum(work.tokens for work in record.work) <= budget for record in records)
    check_trace(records, served)


@pytest.mark.parametrize("after", range(7))
def test_an_abort_between_two_chunks_gives_all_back_and_emits_nothing(after):
    eng = chunked(budget=4)
    served = [request("long", prompt=20, max_tokens=3), request("next", 2, 2)]
    eng.add_all(served)
    for _ in range(after):
        eng.step()
    eng.abort("long")
    check_invariants(eng, served)
    drain(eng)
    assert served[0].output_token_ids == ([] if after < 5 else [10, 11][: after - 4])
    assert (served[0].finish_reason, served[1].finish_reason) == ("abort", "length")
    check_trace(eng.trace.records, served)


# -- real models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [4, 5, 16, 33, 512])
@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_greedy_output_for_every_budget_and_block_size(name, block_size, budget):
    """The pool is full of NaN, and the blocks that come free are filled with it again."""
    model = build(name)
    eng = build_engine(
        "chunked", model, max_num_seqs=4, max_model_len=48, block_size=block_size, num_blocks=110 // block_size,
        max_num_batched_tokens=budget, long_prefill_token_threshold=block_size // 2,
    )  # fmt: skip
    pool = eng.runner.pool
    for tensor in pool.keys + pool.values:
        tensor.fill_(torch.nan)
    served = [
        Request(prompt(n, block_size), SamplingParams(max_tokens=3 + n % 7, temperature=0))
        for n in (1, 15, 16, 17, 30, 2, 33)
    ]
    eng.add_all(served)
    while eng.has_work:
        eng.step()
        check_invariants(eng, served)
        for tensor in pool.keys + pool.values:
            tensor[eng.scheduler.allocator.free_blocks] = torch.nan
    for made in served:
        check_greedy(model, made.prompt_token_ids, made.output_token_ids, made.params.max_tokens, {1})


def test_seeded_output_does_not_depend_on_the_chunks():
    model = build("llama")

    def outputs(stage, **settings):
        eng = build_engine(stage, model, max_num_seqs=4, max_model_len=64, block_size=4, **settings)
        served = [Request(prompt(n, 1), SamplingParams(max_tokens=8, seed=n)) for n in (1, 30, 17, 5, 24)]
        eng.run(served)
        return [made.output_token_ids for made in served]

    whole = outputs("paged")
    for budget, threshold in ((4, 0), (7, 2), (64, 5), (512, 0)):
        assert outputs("chunked", max_num_batched_tokens=budget, long_prefill_token_threshold=threshold) == whole
