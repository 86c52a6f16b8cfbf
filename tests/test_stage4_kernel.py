"""Stage 4: the Triton kernels serve the engine with the same tokens, and are chosen where they can run."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
from architectures import build, prompt
from oracle import check_greedy

from minibatcher import Request, SamplingParams, build_engine
from minibatcher.model import backend

CPU, GPU = torch.device("cpu"), torch.device("cuda")
needs_kernels = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None
    or (os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available()),
    reason="Triton runs on Linux, with a GPU or with TRITON_INTERPRET=1",
)


def serve(stage, model, prompts, backend, **settings):
    engine = build_engine(
        stage, model, max_num_seqs=3, max_model_len=64, num_blocks=16, attention_backend=backend, **settings
    )
    assert engine.trace.meta["settings"]["attention_backend"] == backend
    served = [Request(ids, SamplingParams(max_tokens=3 + i, temperature=0)) for i, ids in enumerate(prompts)]
    engine.run(served)
    return [request.output_token_ids for request in served]


@needs_kernels
@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        ("kernel", {}),
        ("chunked", {"max_num_batched_tokens": 10}),
        ("preemptive", {"max_num_batched_tokens": 10, "watermark": 0.0}),
        ("preemptive", {"max_num_batched_tokens": 10, "preemption": "swap"}),
    ],
)
def test_the_same_tokens_as_pytorch(stage, settings, tiny):
    """Prompts on both sides of a block's border; lanes change hands, so tables are begun anew."""
    prompts = [prompt(length, 7) for length in (1, 15, 16, 17, 5)]
    assert serve(stage, tiny, prompts, "triton", **settings) == serve(stage, tiny, prompts, "torch", **settings)


@needs_kernels
def test_preempted_requests_come_back_to_tables_of_other_blocks(tiny):
    """Three requests outgrow a pool of four blocks."""
    outputs = {}
    for name in ("torch", "triton"):
        engine = build_engine("preemptive", tiny, max_num_seqs=3, num_blocks=4, attention_backend=name)
        served = [Request(prompt(14, i), SamplingParams(max_tokens=22, temperature=0)) for i in range(3)]
        trace = engine.run(served)
        assert any(record.preempted for record in trace) and any(record.resumed for record in trace)
        outputs[name] = [request.output_token_ids for request in served]
    assert outputs["triton"] == outputs["torch"]


@needs_kernels
def test_windows_and_soft_caps_reach_the_kernel():
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    options = dict(sliding_window=7, attn_logit_softcapping=5.0, final_logit_softcapping=30.0, head_dim=32)
    small = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    config = AutoConfig.for_model(
        "gemma2", **small, **options, num_key_value_heads=2, initializer_range=0.2, pad_token_id=0, eos_token_id=1
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    prompts = [prompt(length, 9) for length in (3, 20)]
    for ids, output in zip(prompts, serve("kernel", model, prompts, "triton"), strict=True):
        check_greedy(model, ids, output, len(output), {1})


def test_a_cpu_is_served_by_pytorch_and_the_reason_is_given():
    assert backend.choose("auto", CPU) == (
        "torch",
        "the device is a CPU, where Triton only has its interpreter, which is slow",
    )
    assert backend.choose("torch", CPU)[0] == "torch"


def test_a_gpu_is_served_by_triton_where_the_kernels_can(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert backend.choose("auto", GPU, [(2, 64)]) == ("triton", "the device is a GPU")
    for layers, size, why in (([(2, 16)], 16, "16 wide"), ([(2, 64)], 8, "block_size=8")):
        name, reason = backend.choose("auto", GPU, layers, size)
        assert name == "torch" and why in reason
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    name, reason = backend.choose("auto", GPU, [(2, 64)])
    assert name == "torch" and "Tesla T4" in reason


def test_what_cannot_be_is_refused_with_what_to_do(monkeypatch):
    with pytest.raises(ValueError, match="'cuda' is unknown: choose from auto, torch, triton"):
        backend.choose("cuda", CPU)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="set TRITON_INTERPRET=1.*Use 'auto' or 'torch'"):
        backend.choose("triton", CPU)
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="not installed.*macOS and Windows"):
        backend.choose("triton", CPU)
    assert backend.choose("auto", GPU)[0] == "torch"


def test_heads_that_the_kernels_do_not_take_are_named():
    with pytest.raises(ValueError, match="heads are 8 wide"):
        build_engine("kernel", build("llama"), attention_backend="triton")
