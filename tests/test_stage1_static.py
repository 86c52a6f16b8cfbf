"""Stage 1: a batch at a time, honest padded work, and a batch that may wait to fill."""

from __future__ import annotations

import pytest
import torch
from architectures import build, prompt
from oracle import check_greedy
from stub import engine, request

from minibatcher import Request, SamplingParams, build_engine
from minibatcher.trace import Waiting


def test_nobody_joins_until_all_have_left():
    eng = engine("static", max_num_seqs=2)
    eng.run([request("a", max_tokens=1), request("b", max_tokens=4), request("c", max_tokens=2), request("d")])
    assert eng.runner.plans == [
        {"a": 3, "b": 3},  # prompts of 3
        {"b": 1},
        {"b": 1},
        {"b": 1},
        {"c": 3, "d": 3},
        {"c": 1, "d": 1},
        {"d": 1},
        {"d": 1},
    ]


def test_padding_and_finished_rows_are_told_as_wasted():
    """Prompts of 2 and 5: three rows of padding; then `a` has ended and costs a row until `b` has."""
    eng = engine("static", max_num_seqs=2)
    trace = eng.run([request("a", prompt=2, max_tokens=2), request("b", prompt=5, max_tokens=4)])
    work = [[(w.id, w.lane, w.kind, w.tokens, w.context) for w in record.work] for record in trace]
    assert work == [
        [("a", 0, "prefill", 2, 2), ("b", 1, "prefill", 5, 5), ("a", 0, "wasted", 3, 2)],
        [("a", 0, "decode", 1, 3), ("b", 1, "decode", 1, 6)],
        [("b", 1, "decode", 1, 7), ("a", 0, "wasted", 1, 3)],
        [("b", 1, "decode", 1, 8), ("a", 0, "wasted", 1, 3)],
    ]
    assert all(record.kv is None and not record.blocks for record in trace)


def test_an_aborted_row_is_computed_until_the_batch_ends():
    eng = engine("static", max_num_seqs=2)
    eng.add_all([request("a", max_tokens=4), request("b", max_tokens=4), request("c", max_tokens=1)])
    eng.step()
    eng.abort("a")
    records = [eng.step() for _ in range(3)]
    assert [[(w.id, w.kind) for w in record.work] for record in records] == [[("b", "decode"), ("a", "wasted")]] * 3
    assert [w.id for w in eng.step().work] == ["c"]


def test_a_batch_whose_rows_are_all_aborted_is_over():
    eng = engine("static", max_num_seqs=2)
    eng.add_all([request("a"), request("b"), request("c")])
    eng.step()
    eng.abort("a")
    eng.abort("b")
    assert [w.id for w in eng.step().work] == ["c"]


def test_the_reason_for_waiting():
    eng = engine("static", max_num_seqs=2)
    eng.add_all([request(name) for name in "abcde"])
    eng.step()
    assert eng.step().waiting == Waiting("c", "2 of the batch's 2 requests must finish before anyone joins", 2)


class TestMaxWait:
    def test_a_full_batch_goes_at_once(self):
        eng = engine("static", max_num_seqs=2, max_wait_s=60.0)
        eng.add_all([request("a"), request("b")])
        eng.step()
        assert eng.clock.waits == []

    def test_a_batch_that_does_not_fill_goes_when_its_first_request_has_waited(self):
        eng = engine("static", max_num_seqs=3, max_wait_s=5.0)
        eng.run([request("a", arrival=1.0), request("b", arrival=4.0), request("c", arrival=7.0)])
        assert eng.trace[0].t0 == 6.0 and set(eng.runner.plans[0]) == {"a", "b"}

    def test_an_arrival_that_fills_the_batch_ends_the_wait(self):
        eng = engine("static", max_num_seqs=2, max_wait_s=60.0)
        eng.run([request("a", arrival=1.0), request("b", arrival=4.0)])
        assert eng.trace[0].t0 == 4.0 and set(eng.runner.plans[0]) == {"a", "b"}

    def test_the_next_batch_waits_too(self):
        eng = engine("static", max_num_seqs=2, max_wait_s=5.0)
        eng.run([request("a"), request("b"), request("c", arrival=3.5)])  # the first batch takes seconds 0 to 4
        assert eng.trace[4].t0 == 8.5

    @pytest.mark.parametrize("value", [-1.0, float("nan")])
    def test_a_wait_below_zero_is_refused(self, value):
        with pytest.raises(ValueError, match=f"max_wait_s={value}"):
            engine("static", max_wait_s=value)


class Inputs:
    """Keeps what a model was given."""

    def __init__(self, model) -> None:
        self.calls: list[dict] = []
        self.handle = model.register_forward_pre_hook(
            lambda _, args, kwargs: self.calls.append(kwargs), with_kwargs=True
        )


def test_the_rectangle_is_left_padded_with_mask_and_positions():
    model = build("llama")
    eng = build_engine("static", model, max_num_seqs=3, max_model_len=64)
    inputs = Inputs(model)
    try:
        a, b, c = (prompt(n, 4) for n in (2, 4, 1))
        eng.run([Request(ids, SamplingParams(max_tokens=n, temperature=0)) for ids, n in ((a, 3), (b, 1), (c, 2))])
    finally:
        inputs.handle.remove()
    first, second, third = inputs.calls
    assert first["input_ids"].tolist() == [[0, 0, *a], b, [0, 0, 0, *c]]
    assert first["attention_mask"].tolist() == [[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]]
    assert first["position_ids"].tolist() == [[0, 0, 0, 1], [0, 1, 2, 3], [0, 0, 0, 0]]
    assert second["input_ids"].shape == third["input_ids"].shape == (3, 1)  # b has ended and is computed all the same
    assert second["position_ids"].flatten().tolist() == [2, 0, 1]
    assert third["position_ids"].flatten().tolist() == [3, 0, 0]
    assert third["attention_mask"].shape == (3, 6)


def test_a_finished_row_does_not_leave_the_range_of_learned_positions():
    """GPT-2 knows 256 positions; the row that ends at 255 is computed 60 steps longer."""
    model = build("gpt2")
    eng = build_engine("static", model, max_num_seqs=2, max_model_len=256)
    long, short = prompt(250, 1), prompt(3, 1)
    served = [Request(long, SamplingParams(max_tokens=5, temperature=0)), Request(short, SamplingParams(60, 0))]
    eng.run(served)
    check_greedy(model, short, served[1].output_token_ids, 60, {1})
    check_greedy(model, long, served[0].output_token_ids, 5, {1})


def test_a_pad_token_that_is_the_end_token_changes_nothing():
    model = build("qwen2")
    served = {}
    for pad in (0, 1):
        eng = build_engine("static", model, max_num_seqs=4, max_model_len=64)
        eng.runner.pad_token_id = pad
        served[pad] = [Request(prompt(n, 2), SamplingParams(max_tokens=6, temperature=0)) for n in (1, 9, 4, 2)]
        eng.run(served[pad])
    assert [r.output_token_ids for r in served[0]] == [r.output_token_ids for r in served[1]]


def test_after_a_fault_the_next_batch_is_right():
    model = build("llama")
    eng = build_engine("static", model, max_num_seqs=2, max_model_len=64)
    eng.add(Request(prompt(5, 1), SamplingParams(max_tokens=9, temperature=0)))
    eng.step()
    forward, model.forward = model.forward, None  # calling it raises TypeError
    assert eng.step().finished == [("0", "error")]
    model.forward = forward
    after = Request(prompt(6, 1), SamplingParams(max_tokens=5, temperature=0))
    eng.run([after])
    check_greedy(model, after.prompt_token_ids, after.output_token_ids, 5, {1})


def test_memory_of_a_batch_is_let_go_with_the_next(tiny):
    eng = build_engine("static", tiny, max_num_seqs=2)
    eng.run([Request([5] * 9, SamplingParams(max_tokens=3, temperature=0))])
    old = eng.runner._cache
    eng.run([Request([5] * 4, SamplingParams(max_tokens=3, temperature=0))])
    assert eng.runner._cache is not old
    assert torch.is_tensor(eng.runner._mask) and eng.runner._mask.shape == (1, 6)
