"""Stage 2: leave and join at every step, flat batches, contiguous ranges."""

from __future__ import annotations

import pytest
import torch
from architectures import build, prompt
from oracle import check_greedy
from stub import engine, request

from minibatcher import Request, SamplingParams, build_engine
from minibatcher.model.batch import flatten
from minibatcher.trace import Waiting

RULES = ("max", "pow2", "max_tokens", "oracle")


def test_a_place_is_filled_in_the_step_after_it_came_free():
    eng = engine("iteration", max_num_seqs=2)
    eng.run([request("a", max_tokens=1), request("b", max_tokens=4), request("c", max_tokens=2), request("d")])
    assert eng.runner.plans == [
        {"a": 3, "b": 3},
        {"b": 1, "c": 3},  # those who were here come first
        {"b": 1, "c": 1},
        {"b": 1, "d": 3},
        {"d": 1},
        {"d": 1},
        {"d": 1},
    ]


def test_the_lowest_free_lane_is_taken():
    eng = engine("iteration", max_num_seqs=3)
    served = [request(name, max_tokens=n) for name, n in zip("abcde", (2, 1, 5, 3, 3), strict=True)]
    trace = eng.run(served)
    assert {w.id: w.lane for record in trace for w in record.work} == {"a": 0, "b": 1, "c": 2, "d": 1, "e": 0}


def test_the_reasons_for_waiting():
    eng = engine("iteration", max_num_seqs=2, num_blocks=9, block_size=4, max_model_len=32)
    eng.add_all([request("a", 8, 8), request("b", 8, 8), request("c", 8, 8)])  # 4 blocks each
    assert eng.step().waiting == Waiting("c", "all 2 lanes are taken", 0)
    eng = engine("iteration", max_num_seqs=4, num_blocks=9, block_size=4, max_model_len=32)
    eng.add_all([request("a", 8, 8), request("b", 8, 8), request("c", 8, 8), request("small", 1, 1)])
    why = "needs 4 blocks in a row, the longest hole has 1 (1 free)"
    assert eng.step().waiting == Waiting("c", why, 1)  # nobody overtakes, though `small` would fit


def test_blocks_in_the_trace():
    eng = engine("iteration", max_num_seqs=2, num_blocks=9, block_size=4, max_model_len=32)
    trace = eng.run([request("a", 4, 1), request("b", 5, 3), request("c", 4, 2)])
    assert [record.blocks for record in trace] == [
        [("a", "take", [0, 1]), ("b", "take", [2, 3]), ("a", "free", [0, 1])],
        [("c", "take", [0, 1])],
        [("b", "free", [2, 3]), ("c", "free", [0, 1])],
    ]
    assert trace[0].kv == {"used": 9, "total": 36, "reserved": 4, "internal": 3, "external": 0}


@pytest.mark.parametrize("reserve", RULES)
@pytest.mark.parametrize("block_size", [1, 2, 7, 16])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_greedy_output_for_every_rule_and_block_size(name, block_size, reserve):
    """A pool that holds about two requests, so that ranges come and go."""
    model = build(name)
    eng = build_engine(
        "iteration", model, max_num_seqs=4, max_model_len=48, block_size=block_size, num_blocks=110 // block_size,
        reserve=reserve,
    )  # fmt: skip
    served = [
        Request(prompt(n, block_size), SamplingParams(max_tokens=3 + n % 7, temperature=0), output_len=3 + n % 7)
        for n in (1, 15, 16, 17, 30, 2, 33)
    ]
    eng.run(served)
    for made in served:
        check_greedy(model, made.prompt_token_ids, made.output_token_ids, made.params.max_tokens, {1})
    assert eng.scheduler.allocator.free == 110 // block_size


def test_nothing_unwritten_is_ever_seen():
    """The pool is full of NaN, and the blocks that come free are filled with it again."""
    model = build("mistral")
    eng = build_engine("iteration", model, max_num_seqs=3, max_model_len=64, block_size=4)
    pool = eng.runner.pool
    for tensor in pool.keys + pool.values:
        tensor.fill_(torch.nan)
    served = [Request(prompt(n, 6), SamplingParams(max_tokens=4 + n % 5, temperature=0)) for n in (9, 3, 22, 1, 14, 7)]
    eng.add_all(served)
    while eng.has_work:
        record = eng.step()
        freed = [block for move in record.blocks if move.move == "free" for block in move.blocks]
        for tensor in pool.keys + pool.values:
            tensor[freed] = torch.nan
    for made in served:
        check_greedy(model, made.prompt_token_ids, made.output_token_ids, made.params.max_tokens, {1})


def test_the_flat_batch_by_hand():
    """Two requests decode at contexts 5 and 3, one brings a prompt of 4: six tokens in a row, no padding."""
    eng = build_engine("iteration", build("llama"), max_num_seqs=3, max_model_len=32, block_size=4, reserve="max")
    a, b, c = prompt(4, 1), prompt(2, 1), prompt(4, 2)
    served = [Request(ids, SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)) for ids in (a, b, c)]
    eng.add_all(served[:2])
    eng.step()
    eng.add(served[2])
    plan = eng.scheduler.schedule()
    eng.runner.attention.begin(served[2])
    batch = flatten(plan, block_size=4, device="cpu")
    pieces = eng.runner.attention.prepare(batch).pieces
    assert batch.sampled == [served[1], served[0], served[2]]  # the shorter context first, then the chunk
    assert batch.input_ids.tolist() == [served[1].token_ids[-1], served[0].token_ids[-1], *c]
    assert batch.positions.tolist() == [2, 4, 0, 1, 2, 3]
    assert batch.slot_mapping.tolist() == [32 + 2, 0 + 4, 64, 65, 66, 67]  # 8 blocks of 4 each, in order of admission
    assert batch.last_rows.tolist() == [0, 1, 5]
    assert [(piece.start, piece.end, piece.contexts) for piece in pieces] == [(0, 2, [3, 5]), (2, 6, [4])]
    # behind its end a row names a slot of its own
    assert pieces[0].slots.tolist() == [[32, 33, 34, 32, 32], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("contexts", "runs"),
    [
        ([], []),
        ([5], [(0, 1)]),
        ([1, 1, 2], [(0, 3)]),
        ([1, 3], [(0, 1), (1, 2)]),
        ([10, 11, 20, 21], [(0, 3), (3, 4)]),
        ([60] * 15 + [1800], [(0, 15), (15, 16)]),
        ([682, 683, 700], [(0, 2), (2, 3)]),  # 3 x 700 tokens are more than 2,048
        ([1024, 1024, 1024], [(0, 2), (2, 3)]),
        ([3000, 3000], [(0, 1), (1, 2)]),  # one row may be longer
    ],
)
def test_decodes_are_attended_to_in_runs_of_like_context(contexts, runs):
    from minibatcher.model.attention import _alike

    assert _alike(contexts) == runs


def test_a_range_is_given_back_in_the_commit_that_ends_its_request():
    eng = engine("iteration", max_num_seqs=2, num_blocks=4, block_size=4, max_model_len=16)
    eng.add_all([request("a", 8, 8), request("b", 8, 8)])
    while "a" in eng.scheduler.requests:
        eng.step()
    assert eng.scheduler.allocator.free == 4
    assert [w.id for w in eng.step().work] == ["b"]


def test_oracle_ends_where_it_said():
    """`output_len` is a promise: the range holds no more, so the request ends there."""
    eng = engine("iteration", reserve="oracle")
    made = request("a", prompt=3, max_tokens=40, output_len=6)
    eng.run([made])
    assert (len(made.output_token_ids), made.finish_reason) == (6, "length")
