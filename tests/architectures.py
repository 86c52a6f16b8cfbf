"""Tiny models with random weights, one of each kind that the engine promises to serve."""

from __future__ import annotations

from functools import cache

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = 96
COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    initializer_range=0.2,  # at the default of 0.02 an engine whose positions are shifted by one passes
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=0,
)
WINDOW = 7  # shorter than most prompts of the tests

ARCHITECTURES: dict[str, dict] = {
    "llama": {},
    "mistral": dict(sliding_window=WINDOW),
    "qwen2": {},
    "qwen3": dict(head_dim=8),
    "gemma2": dict(head_dim=8, sliding_window=WINDOW, attn_logit_softcapping=5.0, final_logit_softcapping=30.0),
    "gemma3_text": dict(head_dim=8, sliding_window=WINDOW, num_hidden_layers=6),
    "phi3": {},
    "olmo2": {},
    "smollm3": dict(num_hidden_layers=4),
    "gpt_neox": {},
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=256, n_inner=48),
    "opt": dict(ffn_dim=48, word_embed_proj_dim=32, init_std=0.2),
    "stablelm": {},
    "granite": {},
    "cohere": {},
}


@cache
def build(name: str):
    """A model whose greedy outputs vary; the same one every time."""
    options = {**COMMON, **ARCHITECTURES[name]}
    if name == "gpt2":
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
            del options[key]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **options)).eval()
    model.generation_config.eos_token_id = None
    return model


def prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(2, VOCAB, (length,), generator=generator).tolist()
