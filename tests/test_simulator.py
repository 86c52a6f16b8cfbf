"""The modelled GPU against hand calculations, queueing theory, and the traces that it writes itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import mean

import pytest
from architectures import ARCHITECTURES, build

from minibatcher import STAGES, Engine, Request, SamplingParams, StepRecord, Trace, build_engine
from minibatcher.measure.architectures import architecture, from_config
from minibatcher.measure.calibrate import ProcessorClock
from minibatcher.measure.calibrate import measured as measured_on
from minibatcher.measure.capacity import serve
from minibatcher.measure.costs import CostModel, roofline
from minibatcher.measure.gpus import GPUS, gpu
from minibatcher.measure.leastsquares import nonnegative, robust
from minibatcher.measure.metrics import e2e_by_output, itl_by_active, little, requests, summary, ttft_by_prompt
from minibatcher.measure.policies import policies
from minibatcher.measure.shapes import Shape, pairs, planned, recorded, rectangle
from minibatcher.measure.simulator import (
    SimulatedRunner,
    VirtualClock,
    build_fitted,
    build_simulated,
    simulated_requests,
)
from minibatcher.measure.workloads import Job, arrivals, describe, lengths, synthetic
from minibatcher.memory.blocks import BlockAllocator
from minibatcher.memory.giving_way import GivingWay
from minibatcher.model.rates import giving_way
from minibatcher.plan import Plan
from minibatcher.schedulers.preemptive import PreemptiveScheduler

H100, LLAMA = gpu("h100"), architecture("llama-3.1-8b")


def jobs_of(*lengths: tuple[int, int], at: float = 0.0) -> list[Job]:
    return [Job(range(prompt), output, at) for prompt, output in lengths]


def traffic(n: int, rate: float, seed: int = 1, prompt="lognormal:300:1", output="lognormal:60:1", most=1500):
    drawn = synthetic(n, arrivals("poisson", rate, seed), lengths(prompt), lengths(output), seed)
    return [job for job in drawn if len(job.prompt_token_ids) + job.output_len <= most]


# -- models and GPUs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),  # of the weight files on the Hugging Face hub
    [
        ("smollm2", 134_515_008),
        ("llama-3.2-1b", 1_235_814_400),
        ("mistral-7b", 7_248_023_552),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
    ],
)
def test_weights_of_the_models_in_the_table(name, parameters):
    assert architecture(name).weights == parameters


def test_the_cache_of_the_vllm_papers_model():
    """Section 3: "The KV cache of a single token demands 800 KB of space" for OPT-13B in 16 bits."""
    assert architecture("opt-13b").kv_values * 2 == 800 * 1024


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_config_that_the_engine_can_serve(name):
    """Against the parameters that transformers makes of the same config; biases and positions are left out."""
    model = build(name)
    config = json.loads(model.config.to_json_string())
    if name in ("gpt2", "gpt_neox", "opt"):  # the tests' common options give them a key that they do not look at
        del config["num_key_value_heads"]
    computed = from_config(config, name).weights
    small = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 1 or "wpe" in n or "embed_positions" in n)
    norms = 2 * 32 * model.config.num_hidden_layers + 32  # of `small`, what is counted
    assert computed - norms == model.num_parameters() - small


def test_a_config_json_or_its_folder(tmp_path):
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 100, "vocab_size": 10, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for place in (tmp_path, tmp_path / "config.json"):
        # q and o 64 x 64, k and v 64 x 32, three of the MLP, two norms; then the last norm
        assert architecture(place).layer_weights == 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 100 + 2 * 64) + 64
        assert architecture(place).weights == architecture(place).layer_weights + 2 * 10 * 64  # not tied
    nested = {"text_config": config, "vision_config": {"hidden_size": 5}}
    assert from_config(nested, "x") == from_config(config, "x")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"num_local_experts": 8}, "num_local_experts=8: a mixture of experts"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"state_size": 16}, "recurrent"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "recurrent"),
        ({"hidden_size": None}, "no hidden_size or n_embd or d_model in this config"),
        ({"vocab_size": "many"}, "no vocab_size"),
    ],
)
def test_configs_that_the_form_does_not_describe_are_refused(extra, message, tmp_path):
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10} | extra
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        architecture(tmp_path)


def test_unknown_names_are_refused_with_the_list():
    with pytest.raises(
        ValueError, match="unknown GPU 'h900': choose from t4, l4, a10g, a100, h100, h200, b200, mi300x"
    ):
        gpu("h900")
    with pytest.raises(
        ValueError, match=r"unknown model 'gpt9': choose from smollm2, .*, or give the path of a config"
    ):
        architecture("gpt9")
    with pytest.raises(ValueError, match="dtype='bfloat16': t4 computes in float16"):
        roofline(gpu("t4"), LLAMA)


# -- the roofline, by hand --------------------------------------------------------------------------------------------


def test_the_batch_at_which_decoding_stops_being_bound_by_weights():
    """A row takes 2 FLOPs a weight, and a weight is 2 bytes: compute takes over when
    rows x 2 x W / 989.5e12 = 2 x W / 3.35e12, so at 989.5 / 3.35 = 295.4 rows, whatever the model."""
    costs = roofline(H100, LLAMA)
    for model in ("smollm2", "llama-3.1-8b", "opt-13b"):
        costs = roofline(H100, architecture(model))
        for rows, by_compute in ((295, False), (296, True)):
            terms = costs.step(Shape(tokens=rows, sampled=rows, pairs=0, kv=0))
            assert (terms["compute"] > terms["weights"]) is by_compute
    assert roofline(H100, LLAMA, dtype="float8").token / costs.token < 1


def test_why_batch():
    """The lecture demo: Llama-3.1-8B on an H100 at context 500. Layers and output layer have 7.505e9 weights, so one
    reading takes 15.01e9 / 3.35e12 = 4.481 ms; 500 tokens of keys and values are 500 x 131,072 bytes = 19.6 us."""
    costs = roofline(H100, LLAMA, overhead_s=0.0)
    weights = (8_030_261_248 - 128_256 * 4096) * 2 / 3.35e12
    kv = 500 * 131_072 / 3.35e12
    attention = 500 * 4 * 32 * 128 * 32 / 989.5e12

    def step(rows):
        return costs.step(Shape(rows, rows, 500 * rows, 500 * rows))["seconds"]

    assert step(1) == pytest.approx(weights + kv + attention) == pytest.approx(4.5e-3, rel=1e-3)
    assert step(64) == pytest.approx(weights + 64 * (kv + attention))
    assert step(64) / step(1) == pytest.approx(1.28, abs=0.005)  # 64 rows for the time of 1.28


def test_terms_and_utilisation():
    costs = roofline(H100, LLAMA, efficiency=0.5)
    terms = costs.step(Shape(tokens=512, sampled=1, pairs=512 * 256, kv=512, swaps=2, blocks=10))
    parts = ("attention", "kv", "gather", "allreduce", "swap", "overhead")
    assert terms["seconds"] == pytest.approx(
        max(terms["compute"], terms["weights"]) + sum(terms[name] for name in parts)
    )
    flops = 2 * 512 * LLAMA.layer_weights + 2 * LLAMA.output_weights + 512 * 256 * LLAMA.pair_flops
    assert terms["mfu"] == pytest.approx(flops / terms["seconds"] / 989.5e12)
    moved = 2 * (LLAMA.layer_weights + LLAMA.output_weights) + 512 * 131_072
    assert terms["mbu"] == pytest.approx(moved / terms["seconds"] / 3.35e12)
    assert 0 < terms["mfu"] < 0.5 and 0 < terms["mbu"] < 0.5  # never above the efficiency


def test_gathering_reads_and_writes_keys_and_values_once_more():
    kernel, gathers = roofline(H100, LLAMA), roofline(H100, LLAMA, gathers=True)
    shape = Shape(tokens=16, sampled=16, pairs=16 * 600, kv=16 * 600)
    more = gathers.step(shape)["seconds"] - kernel.step(shape)["seconds"]
    assert more == pytest.approx(2 * 16 * 600 * 131_072 / 3.35e12) and kernel.step(shape)["gather"] == 0.0


def test_tensor_parallelism_divides_and_adds_two_all_reduces_a_layer():
    one, four = roofline(H100, LLAMA), roofline(H100, LLAMA, tensor_parallel_size=4)
    assert four.token == pytest.approx(one.token / 4) and four.kv == pytest.approx(one.kv / 4)
    # a ring sends 2 x 3/4 of the 4,096 activations of 2 bytes over 450e9 bytes/s, twice in each of 32 layers
    assert four.allreduce == pytest.approx(64 * 1.5 * 4096 * 2 / 450e9) and one.allreduce == 0.0
    sixteen = roofline(H100, LLAMA, tensor_parallel_size=16)  # 8 kv heads: every head is kept twice
    assert sixteen.kv == pytest.approx(one.kv / 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"efficiency": 0.0}, "efficiency=0.0"),
        ({"efficiency": 1.5}, "at most 1"),
        ({"tensor_parallel_size": 3}, "must divide llama-3.1-8b's 32 heads"),
        ({"overhead_s": -1.0}, "overhead_s=-1.0"),
    ],
)
def test_nonsense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        roofline(H100, LLAMA, **arguments)


# -- the engine on it -------------------------------------------------------------------------------------------------


def test_pairs_of_a_chunk():
    assert pairs(1, 7) == 7 and pairs(4, 4) == 4 + 3 + 2 + 1 and pairs(3, 10) == 10 + 9 + 8
    assert rectangle(2, 3, 5) == Shape(tokens=6, sampled=2, pairs=2 * (5 + 4 + 3), kv=10)


def test_the_shape_of_a_plan():
    decode, chunk, part = (Request([1] * n) for n in (9, 8, 8))
    decode.num_computed, chunk.num_computed = 8, 2
    plan = Plan(work={decode: 1, chunk: 6, part: 3})
    assert planned(plan) == Shape(
        tokens=10, sampled=2, pairs=9 + (8 + 7 + 6 + 5 + 4 + 3) + (3 + 2 + 1), kv=9 + 8 + 3
    )  # fmt: skip


POOLS = {"iteration": 600, "paged": 600, "kernel": 600, "chunked": 600, "preemptive": 120}


WAYS = [*((stage, None) for stage in STAGES), ("preemptive", "swap"), ("preemptive", "auto")]


@pytest.mark.parametrize(("stage", "preemption"), WAYS)
def test_every_stage_serves_and_tells_the_truth(stage, preemption):
    """All outputs have their length, the clock is the sum of the steps, each record's cost is that of the shape that
    the trace shows, Little's law holds, and the record goes through JSON."""
    settings = {"num_blocks": POOLS[stage], "reserve": "max_tokens"} if stage in POOLS else {}
    settings = {name: value for name, value in settings.items() if name in STAGES[stage].uses}
    settings |= {"preemption": preemption} if preemption else {}
    jobs = traffic(120, rate=30.0)
    engine = build_simulated(stage, max_num_seqs=24, max_model_len=1536, **settings)
    wanted = simulated_requests(jobs)
    trace = engine.run(wanted)
    assert [len(r.output_token_ids) for r in wanted] == [job.output_len for job in jobs]
    assert all(r.finish_reason == "length" for r in wanted)
    costs = CostModel(**trace.meta["costs"])
    steps = list(recorded(trace))
    assert len(steps) == sum(bool(record.work) for record in trace)
    for record, shape in steps:
        assert record.cost == pytest.approx(costs.step(shape)) and record.t1 - record.t0 == pytest.approx(
            record.cost["seconds"]
        )
    seen, expected = little(trace)
    assert seen == pytest.approx(expected, rel=1e-9) and seen > 1
    figures = summary(trace)
    assert 0 < figures.mfu < 1 and 0 < figures.mbu <= 1
    assert (figures.preemptions > 0) is (stage == "preemptive")
    assert StepRecord.from_json(trace[5].to_json()).cost == trace[5].cost


def test_requests_reserve_what_they_ask_for_and_end_when_their_answer_does():
    engine = build_simulated("paged", max_num_seqs=8, max_model_len=256, num_blocks=64)
    engine.run(simulated_requests(jobs_of((20, 30)), max_tokens=64))
    assert engine.trace[0].blocks[0].blocks == list(range(6))  # 20 + 64 tokens in blocks of 16
    assert len(engine.trace) == 30


def test_a_gpus_memory_becomes_blocks():
    """80 GB x 0.9 less 16.06 GB of weights, in blocks of 16 x 131,072 bytes: 26,675."""
    settings = build_simulated("preemptive", max_num_seqs=256, max_model_len=8192).trace.meta["settings"]
    assert settings["num_blocks"] == int((72e9 - 8_030_261_248 * 2) // (16 * 131_072)) == 26_674
    few = build_simulated("preemptive", max_num_seqs=2, max_model_len=160).trace.meta["settings"]
    assert few["num_blocks"] == 20, "more than all lanes can fill is never used"


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic():
    message = r"70,553,706,496 x 2 bytes = 141.1 GB.*1 x 80 GB x 0.9 = 72.0 GB"
    with pytest.raises(ValueError, match=message):
        build_simulated("preemptive", "h100", "llama-3.1-70b")
    build_simulated("preemptive", "h100", "llama-3.1-70b", tensor_parallel_size=4)
    with pytest.raises(ValueError, match=r"may need 64 x 8192 = 524288 tokens of memory, and 426\d\d\d fit.*=52 fits"):
        build_simulated("static", max_num_seqs=64, max_model_len=8192)
    build_simulated("static", max_num_seqs=52, max_model_len=8192)


@pytest.mark.parametrize(
    ("stage", "settings", "message"),
    [
        ("fast", {}, "unknown stage 'fast'"),
        ("static", {"num_blocks": 5}, "stage 'static' does not use it"),
        ("kernel", {"attention_backend": "fast"}, "attention_backend='fast' is unknown: choose auto, torch or triton"),
        ("paged", {"max_model_len": 200_000}, "made for at most 131072 tokens"),
        ("preemptive", {"preemption": "drop"}, "choose recompute, swap or auto"),
    ],
)
def test_settings_are_checked_as_for_a_real_model(stage, settings, message):
    with pytest.raises(ValueError, match=message):
        build_simulated(stage, **settings)


def test_attention_gathers_where_the_stage_says_so():
    def gather(stage, **settings):
        return build_simulated(stage, **settings).runner.costs.gather > 0

    assert [gather(stage) for stage in STAGES] == [False, True, True, False, False, False]
    assert gather("chunked", attention_backend="torch")


# -- theory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.5, pytest.param(0.8, marks=pytest.mark.slow)])
def test_waiting_for_one_slot_is_that_of_an_m_d_1_queue(load):
    """Pollaczek and Khinchine: with Poisson arrivals and one server that takes D for everybody, the mean wait is
    load x D / (2 (1 - load)). One token each, so a request is one step."""
    engine = build_simulated("iteration", max_num_seqs=1, max_model_len=256, keep_trace=False)
    service = engine.runner.costs.step(Shape(100, 1, pairs(100, 100), 100))["seconds"]
    n = {0.5: 50_000, 0.8: 200_000}[load]
    jobs = synthetic(n, arrivals("poisson", load / service, seed=7), lengths("100"), lengths("1"))
    trace = serve(engine, simulated_requests(jobs))
    waits = [r.ttft - service for r in requests(trace).values()]
    assert min(waits) == pytest.approx(0.0, abs=1e-9)
    assert mean(waits) == pytest.approx(load * service / (2 * (1 - load)), rel=0.03)


# -- the lecture demos (NOTEBOOKS.md) ---------------------------------------------------------------------------------


def test_slow_guest():
    """Four lanes, outputs (40, 4, 4, 4) four times: each static batch lasts as long as its longest, 4 x 40 steps.
    Scheduled at every step, three lanes serve short ones and later long ones; the last long one begins at step 24."""
    jobs = jobs_of(*[(10, output) for output in (40, 4, 4, 4) * 4])
    steps = {}
    for stage in ("static", "iteration"):
        engine = build_simulated(stage, max_num_seqs=4, max_model_len=64)
        steps[stage] = len(engine.run(simulated_requests(jobs)))
    assert steps == {"static": 160, "iteration": 64}


def test_how_many_fit():
    """A pool of 1,024 tokens, max_model_len 256, prompt 20, max_tokens 64, real output 30, blocks of 16: ranges of 256
    fit 4 times; 84 tokens are 6 of 64 blocks, 10 times; prompts alone are 2 blocks, 32 times (31, and one to spare)."""
    jobs = jobs_of(*[(20, 30)] * 60)

    def most(stage, **settings):
        engine = build_simulated(stage, max_num_seqs=60, max_model_len=256, num_blocks=64, **settings)
        return summary(engine.run(simulated_requests(jobs, max_tokens=64))).max_running

    assert most("iteration", reserve="max") == 4
    assert most("iteration", reserve="max_tokens") == 10
    assert most("paged") == 10
    assert most("preemptive", watermark=0.0) == 32 and most("preemptive") == 31


def test_pasted_contract():
    """Eight streams and a prompt of 2,000 tokens. In one piece it stalls every stream for the time of 2,008 tokens;
    under a budget of 128 tokens, 120 of it go along with 8 decodes, and its own first token is later: it pays."""
    figures = {}
    for stage, settings in (("kernel", {}), ("chunked", {"max_num_batched_tokens": 128})):
        engine = build_simulated(stage, max_num_seqs=9, max_model_len=2048, **settings)
        jobs = jobs_of(*[(50, 100)] * 8) + jobs_of((2000, 2), at=0.1)
        figures[stage] = requests(engine.run(simulated_requests(jobs)))
    costs = engine.runner.costs
    stall = {stage: max(max(found[str(i)].itls) for i in range(8)) for stage, found in figures.items()}
    first = {stage: found["8"].ttft for stage, found in figures.items()}
    assert stall["kernel"] > costs.token * 2008 == pytest.approx(28.3e-3, rel=0.01)
    assert stall["chunked"] < 1.15 * costs.weights and stall["kernel"] > 5 * stall["chunked"]
    assert math.ceil(2000 / 120) * costs.weights < first["chunked"] < (math.ceil(2000 / 120) + 1) * 1.15 * costs.weights
    assert first["chunked"] > 2 * first["kernel"]


# -- scheduling and memory, each alone --------------------------------------------------------------------------------


def test_memory_policies_of_the_vllm_paper():
    jobs = traffic(150, rate=1e6, prompt="lognormal:160:1", output="lognormal:140:1", most=1024)
    jobs = [job for job in jobs if job.output_len <= 400]  # and 400 is what everybody asks for
    found = {
        (policy.scheduling, policy.memory): policy
        for policy in policies(roofline(H100, LLAMA), jobs, num_blocks=512, max_model_len=1024, max_tokens=400)
    }
    assert len(found) == 11
    for policy in found.values():
        assert policy.figures.finish_reasons == {"length": len(jobs)} and 0 < sum(policy.shares.values()) <= 1
        assert (policy.figures.preemptions > 0) is (policy.memory == "paged, on demand")
    speed = {key: policy.figures.output_tokens_per_s for key, policy in found.items()}
    ladder = ["ranges, max", "ranges, pow2", "ranges, oracle"]
    for scheduling in ("static", "iteration"):
        assert speed[scheduling, ladder[0]] < speed[scheduling, ladder[1]] < speed[scheduling, "ranges, oracle"] * 1.05
    # the 2 x 2: each alone, and both
    alone, both = speed["static", "ranges, max"], speed["iteration", "paged, on demand"]
    assert alone < speed["static", "paged"] < both and alone < speed["iteration", "ranges, max"] < both
    waste = {key: policy.shares["internal"] + policy.shares["external"] for key, policy in found.items()}
    assert waste["iteration", "ranges, max"] > 0.4 and waste["iteration", "paged, on demand"] < 0.01
    assert found["iteration", "paged"].shares["external"] == 0.0 < found["iteration", "ranges, pow2"].shares["external"]


# -- preemption="auto" ------------------------------------------------------------------------------------------------


def test_what_giving_way_costs():
    """A step of few tokens takes 10 s (reading the weights), a token 1 s; so with 4 decodes 6 tokens ride along."""
    costs = GivingWay(token=1.0, step=10.0, pair=0.0, swap=3.0, block=2.0)
    assert costs.swap_s(5) == 2 * (3 + 5 * 2)
    assert costs.recompute_s(6, decodes=4, budget=64) == 0.0
    assert costs.recompute_s(20, decodes=4, budget=64) == 14.0  # 24 s in place of 10
    assert costs.recompute_s(20, decodes=4, budget=14) == 8.0  # two steps of 14 s in place of 10
    assert costs.recompute_s(20, decodes=30, budget=64) == 20.0  # compute-bound already: nothing rides along
    assert GivingWay(0.0, 0.0, 1.0, 0.0, 0.0).recompute_s(6, 1, 8) == 18.0


def run_tight(giving_way: GivingWay) -> list:
    clock = VirtualClock()
    scheduler = PreemptiveScheduler(
        allocator=BlockAllocator(24, 4, 64),
        max_num_seqs=8,
        max_model_len=64,
        preemption="auto",
        num_cpu_blocks=1000,
        giving_way=giving_way,
    )
    engine = Engine(scheduler, SimulatedRunner(roofline(H100, LLAMA), clock), clock)
    trace = engine.run(simulated_requests(jobs_of(*[(3 + 2 * i, 30) for i in range(8)])))
    assert summary(trace).finish_reasons == {"length": 8}
    return [preemption for record in trace for preemption in record.preempted]


def test_auto_takes_the_cheaper_way():
    forever = GivingWay(token=1.0, step=0.0, pair=0.0, swap=1e9, block=0.0)
    assert {p.mode for p in run_tight(forever)} == {"recompute"}
    assert {p.mode for p in run_tight(replace(forever, swap=0.0))} == {"swap"}
    both = run_tight(replace(forever, swap=9.0))  # 18 s there and back, 1 s a token
    assert {p.mode for p in both} == {"swap", "recompute"}
    assert all(p.tokens <= 18 if p.mode == "recompute" else 4 * p.blocks > 18 for p in both)


def test_auto_needs_to_know_the_costs():
    with pytest.raises(ValueError, match="preemption='auto' compares"):
        PreemptiveScheduler(allocator=BlockAllocator(24, 4, 64), max_model_len=64, preemption="auto")


def test_on_a_cpu_a_swap_is_a_copy_and_always_wins(smollm2):
    costs = giving_way(smollm2.model, smollm2.layers, block_size=16, tokens=32, blocks=16)
    for tokens in (100, 1000):
        assert costs.swap_s(-(-tokens // 16)) < costs.recompute_s(tokens, decodes=4, budget=128)
    settings = build_engine("preemptive", smollm2, preemption="auto", num_blocks=64).trace.meta["settings"]
    assert settings["preemption"] == "swap" and settings["num_cpu_blocks"] == 64


def test_where_swapping_begins_to_pay():
    """On an H100 short victims ride along; a longer one is moved. B200's copies are no faster than H100's, and its
    FLOPs are: there everything is computed again."""

    def swapped(name, tokens):
        costs = roofline(gpu(name), LLAMA, dtype="float16").giving_way
        return costs.swap_s(-(-tokens // 16)) < costs.recompute_s(tokens, 32, 512)

    assert [swapped("h100", n) for n in (128, 512, 2048)] == [False, False, True]
    assert not any(swapped("b200", n) for n in (128, 512, 2048, 8192))
    assert all(swapped("a10g", n) for n in (128, 512, 2048))


# -- fitted costs -----------------------------------------------------------------------------------------------------

TRUE = CostModel(token=3e-3, sample=5e-4, weights=60e-3, pair=1e-6, kv=1e-5)


def measured(costs: CostModel, noise: float, seed: int = 0) -> Trace:
    """What a real engine would have written, if its steps took what `costs` says, give or take the noise."""
    draw = Random(seed)
    engine = build_fitted("chunked", costs, max_num_seqs=16, max_model_len=1024, max_num_batched_tokens=128)
    trace = engine.run(simulated_requests(traffic(60, 0.5, prompt="lognormal:60:1", output="lognormal:40:1", most=800)))
    trace.meta["clock"] = "wall"
    for record in trace:
        record.t1 = record.t0 + (record.t1 - record.t0) * draw.uniform(1 - noise, 1 + noise)
        record.cost = None
    return trace


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_a_fit_finds_what_was_there(overlap):
    true = replace(TRUE, overlap=overlap)
    costs = CostModel.fit(measured(true, noise=0.05))
    assert costs.median_error == pytest.approx(0.025, abs=0.005) and abs(costs.total_error) < 0.01
    for name in ("token", "weights", "kv", "pair"):
        assert getattr(costs, name) == pytest.approx(getattr(true, name), rel=0.25)
    assert costs.overlap == overlap and costs.efficiency is None
    assert f"{costs.median_error:.1%} (median)" in costs.trust and "misses" not in costs.trust
    assert "mfu" not in costs.step(Shape(tokens=1))


def test_a_fit_counts_the_time_between_the_steps_of_a_gpu():
    trace = measured(TRUE, 0.01)
    for number, record in enumerate(trace):  # 2 ms in which Python schedules and the GPU waits
        record.t0, record.t1 = record.t0 + 0.002 * number, record.t1 + 0.002 * number
    assert CostModel.fit(trace).overhead == pytest.approx(0.002, abs=1e-4)
    assert CostModel.fit(measured(TRUE, 0.01)).overhead == pytest.approx(0.0, abs=1e-4)


def test_a_fit_that_misses_the_bar_says_so():
    costs = CostModel.fit(measured(TRUE, noise=0.6))
    assert costs.median_error > 0.10 and "that misses the aim of 10% a step and 5% in all" in costs.trust
    assert "compared with no measurement" in roofline(H100, LLAMA).trust


def test_a_fit_needs_a_measured_run_with_several_batch_sizes():
    trace = measured(TRUE, 0.01)
    short = Trace(trace.meta, trace.records[:30])
    with pytest.raises(ValueError, match="needs at least 20 of each"):
        CostModel.fit(short)
    trace.meta["clock"] = "virtual"
    with pytest.raises(ValueError, match="modelled, not measured"):
        CostModel.fit(trace)


def test_a_fitted_model_predicts_a_run():
    costs = CostModel.fit(measured(TRUE, noise=0.05))
    jobs = traffic(60, 0.5, seed=9, prompt="lognormal:60:1", output="lognormal:40:1", most=800)
    seconds = [
        build_fitted("paged", c, max_num_seqs=8, max_model_len=1024).run(simulated_requests(jobs))[-1].t1
        for c in (TRUE, costs)
    ]
    assert seconds[1] == pytest.approx(seconds[0], rel=0.02)


def test_a_load_on_a_real_model():
    """What `bench --costs` does; its figures are for a machine at rest and not for a test."""
    trace = measured_on("tiny", clock=ProcessorClock())
    assert trace.meta["clock"] == "cpu" and {len(record.work) for record in trace} >= {4, 6, 9, 11, 13, 15, 16}
    assert CostModel.fit(trace).median_error > 0
    assert all(a.t1 <= b.t0 + 1e-9 for a, b in pairwise(trace))


def test_least_squares_by_hand():
    rows = [(1.0, 0.0, 2.0), (0.0, 1.0, 2.0), (1.0, 1.0, 5.0), (3.0, 1.0, 1.0)]
    exact = [row[0] * 2 + row[1] * 3 + row[2] * 4 for row in rows]
    assert nonnegative(rows, exact) == pytest.approx([2, 3, 4], rel=1e-4)
    assert nonnegative([(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)], [3.0, 2.0, 1.0])[1] == 0.0  # it would have to be negative
    line = [(1.0, float(x)) for x in range(1, 30)]
    disturbed = [10.0 + 2 * x for _, x in line]
    disturbed[5] /= 9
    assert robust(line, disturbed) == pytest.approx([10, 2], rel=0.2)
    assert nonnegative(line, disturbed) != pytest.approx([10, 2], rel=0.5)


# -- what comes out ---------------------------------------------------------------------------------------------------


def test_latencies_by_size():
    engine = build_simulated("kernel", max_num_seqs=4, max_model_len=4096)
    trace = engine.run(simulated_requests([Job(range(1), 3, 0.0), Job(range(3000), 5, 10.0), Job(range(3), 1, 20.0)]))
    assert [(b.low, b.high, b.count) for b in ttft_by_prompt(trace)] == [(1, 1, 1), (2, 3, 1), (2048, 4095, 1)]
    assert [(b.low, b.high, b.count) for b in e2e_by_output(trace)] == [(1, 1, 1), (2, 3, 1), (4, 7, 1)]
    assert [(b.low, b.count) for b in itl_by_active(trace)] == [(1, 2 + 4)]
    assert ttft_by_prompt(trace)[2].seconds.p50 > ttft_by_prompt(trace)[0].seconds.p50


def test_simulated_requests_take_the_longest_output_as_what_is_asked_for():
    jobs = jobs_of((4, 7), (5, 90))
    wanted = simulated_requests(jobs, deadline_s=3.0)
    assert [r.params.max_tokens for r in wanted] == [90, 90] and wanted[1].num_prompt_tokens == 5
    assert wanted[0].deadline_s == 3.0 and simulated_requests(jobs, 12)[0].params == SamplingParams(
        max_tokens=12, ignore_eos=True
    )
    assert describe(jobs).longest == 95


def test_every_gpu_serves():
    for name, device in GPUS.items():
        dtype = next(iter(device.flops))
        trace = build_simulated("preemptive", name, "llama-3.2-1b", dtype=dtype).run(
            simulated_requests(jobs_of((100, 20)))
        )
        assert trace[-1].t1 > 0 and name in trace.meta["device"]
