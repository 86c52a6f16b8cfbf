"""Every architecture that is promised, at every stage, against transformers' own forward; and what is refused."""

from __future__ import annotations

import pytest
from architectures import ARCHITECTURES, build, prompt
from oracle import check_greedy
from transformers import AutoConfig, AutoModelForCausalLM

from minibatcher import STAGES, Request, SamplingParams, build_engine
from minibatcher.model import attention, runner
from minibatcher.model.load import load

EOS = 1
LENGTHS = [1, 2, 3, 4, 6, 7, 8, 9, 13, 15, 16, 17, 24, 31, 32, 33, 40]  # around the window (7) and the block (16)


def serve(name: str, stage: str, prompts: list[list[int]], max_tokens: list[int], lanes: int) -> list[list[int]]:
    engine = build_engine(stage, build(name), max_num_seqs=lanes, max_model_len=96)
    requests = [
        Request(ids, SamplingParams(max_tokens=n, temperature=0)) for ids, n in zip(prompts, max_tokens, strict=True)
    ]
    engine.run(requests)
    return [request.output_token_ids for request in requests]


def check(name: str, stage: str, prompts: list[list[int]], max_tokens: list[int], lanes: int) -> None:
    outputs = serve(name, stage, prompts, max_tokens, lanes)
    for ids, output, n in zip(prompts, outputs, max_tokens, strict=True):
        check_greedy(build(name), ids, output, n, {EOS})


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_output_is_the_models_own(name, stage):
    prompts = [prompt(length, seed) for seed, length in enumerate(LENGTHS)]
    check(name, stage, prompts, [4 + 5 * i % 13 for i in range(len(prompts))], lanes=5)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("lanes", range(1, 10))
def test_any_batch_size_and_every_prompt_length(stage, lanes):
    prompts = [prompt(length, lanes) for length in range(1, 41)]
    check("mistral", stage, prompts, [3] * 40, lanes)


@pytest.mark.parametrize("stage", STAGES)
def test_all_rows_end_together(stage):
    check("gemma2", stage, [prompt(9, seed) for seed in range(4)], [6] * 4, lanes=4)


@pytest.mark.parametrize("stage", STAGES)
def test_one_row_far_longer_than_the_rest(stage):
    prompts = [prompt(length, 3) for length in (2, 3, 40, 4)]
    check("llama", stage, prompts, [3, 4, 50, 2], lanes=4)


@pytest.mark.parametrize("stage", STAGES)
def test_an_end_token_in_the_middle_of_a_batch(stage):
    """One row's own third token is made the end token; its neighbours, which may meet it too, follow the reference."""
    model = build("qwen3")
    prompts = [prompt(length, 8) for length in (5, 9, 12)]
    end = serve("qwen3", stage, prompts, [12] * 3, lanes=3)[1][2]
    engine = build_engine(stage, model, max_num_seqs=3, max_model_len=96)
    engine.scheduler.eos_token_ids = frozenset({end})
    requests = [Request(ids, SamplingParams(max_tokens=12, temperature=0)) for ids in prompts]
    engine.run(requests)
    assert requests[1].output_token_ids[-1] == end and len(requests[1].output_token_ids) <= 3
    assert requests[1].finish_reason == "stop"
    for request in requests:
        check_greedy(model, request.prompt_token_ids, request.output_token_ids, 12, {end})


@pytest.mark.smollm2
@pytest.mark.parametrize("stage", STAGES)
def test_smollm2_on_real_prompts(stage, smollm2):
    from minibatcher.demo import prompts

    texts = [item["prompt"] for item in prompts()[:8]]
    engine = build_engine(stage, smollm2, max_num_seqs=4, max_model_len=256)
    requests = [
        Request(smollm2.tokenizer(text).input_ids, SamplingParams(max_tokens=6 + i, temperature=0))
        for i, text in enumerate(texts)
    ]
    engine.run(requests)
    for i, request in enumerate(requests):
        ids, output = request.prompt_token_ids, request.output_token_ids
        check_greedy(smollm2.model, ids, output, 6 + i, smollm2.eos_token_ids)


# -- the tests above can fail -----------------------------------------------------------------------------------------


def shifted_positions(monkeypatch):
    """A decode stands one position too far."""
    flatten = runner.flatten

    def mutant(plan, block_size, device):
        batch = flatten(plan, block_size, device)
        batch.positions[: batch.num_singles] += 1
        return batch

    monkeypatch.setattr(runner, "flatten", mutant)


def forgotten_first_token(monkeypatch):
    """The first token is never read."""

    def mutant(piece):
        if piece.slots.shape[1] > 1:
            piece.slots[:, 0] = piece.slots[:, 1]

    change_pieces(monkeypatch, mutant)


def exchanged_blocks(monkeypatch):
    """Two rows of a group of decodes read each other's tokens."""

    def mutant(piece):
        if len(piece.contexts) > 1:
            piece.slots = piece.slots[[1, 0, *range(2, len(piece.contexts))]]

    change_pieces(monkeypatch, mutant)


def change_pieces(monkeypatch, mutant):
    prepare = attention.TorchAttention.prepare

    def changed(self, batch):
        gather = prepare(self, batch)
        for piece in gather.pieces:
            piece.slots = piece.slots.clone()
            mutant(piece)
        return gather

    monkeypatch.setattr(attention.TorchAttention, "prepare", changed)


@pytest.mark.parametrize("mutant", [shifted_positions, forgotten_first_token, exchanged_blocks])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_wrong_engine_is_caught(name, mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match="the reference gives|the output"):
        test_greedy_output_is_the_models_own(name, "iteration")


# -- what cannot be served is refused when it is loaded ---------------------------------------------------------------

SMALL = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    pad_token_id=0,
)
REFUSED = {
    "mamba": (dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4), "linear_attention"),
    "bloom": (dict(vocab_size=64, hidden_size=32, n_layer=2, n_head=4), "layers attend|forward"),
    "qwen3_next": (
        {**SMALL, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "num_experts": 0},
        "linear_attention",
    ),
    "gpt_oss": ({**SMALL, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}, "sinks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_served_is_refused_with_the_reason(name):
    options, reason = REFUSED[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **options))
    with pytest.raises(ValueError, match=reason):
        load(model.eval())


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_rotary_types_that_look_at_the_whole_batch_are_refused(rope):
    parameters = {"rope_type": rope, "rope_theta": 10000.0, "factor": 2.0}
    if rope == "longrope":
        parameters |= {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4, "original_max_position_embeddings": 32}
    config = AutoConfig.for_model("llama", **SMALL, rope_parameters=parameters)
    with pytest.raises(ValueError, match=f"'{rope}' reads the longest position"):
        load(AutoModelForCausalLM.from_config(config).eval())


def test_an_encoder_decoder_is_refused():
    config = AutoConfig.for_model("t5", vocab_size=64, d_model=32, d_ff=32, d_kv=8, num_layers=1, num_heads=4)
    from transformers import T5ForConditionalGeneration

    with pytest.raises(ValueError, match="encoder-decoder"):
        load(T5ForConditionalGeneration(config).eval())


# -- one model, two engines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma2", "llama"])
def test_two_engines_on_one_model_do_not_disturb_each_other(name):
    """Their steps alternate; afterwards the model attends as it did before."""
    model = build(name)
    own = model.config._attn_implementation
    prompts = [prompt(length, 5) for length in (11, 5, 20)]
    engines = [build_engine(stage, model, max_num_seqs=2, max_model_len=64) for stage in (*STAGES, *STAGES)]
    served = [[Request(ids, SamplingParams(max_tokens=7, temperature=0)) for ids in prompts] for _ in engines]
    for engine, requests in zip(engines, served, strict=True):
        engine.add_all(requests)
    while any(engine.has_work for engine in engines):
        for engine in engines:
            if engine.has_work:
                engine.step()
    assert model.config._attn_implementation == own
    for requests in served:
        for request in requests:
            check_greedy(model, request.prompt_token_ids, request.output_token_ids, 7, {EOS})


def test_probing_leaves_the_model_as_it_was():
    model = build("gemma2")
    own = model.config._attn_implementation
    assert load(model).layers == [(2, 8), (2, 8)]
    assert model.config._attn_implementation == own
