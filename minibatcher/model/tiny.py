"""`tiny`: a two-layer Llama with random weights and a byte tokenizer. No download, milliseconds a step."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

START, END, PAD = "<|start|>", "<|end|>", "<|pad|>"
CHAT = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte (ids 0 to 255, in the order of GPT-2's byte alphabet), and three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE(vocab={letter: id for id, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([START, END, PAD])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=START, eos_token=END, pad_token=PAD, chat_template=CHAT
    )


def model(seed: int = 0) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # the least that the Triton kernels take
        max_position_embeddings=4096,
        # At transformers' default of 0.02 attention hardly matters, and an engine whose positions are shifted by one
        # gives the same tokens.
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
        name_or_path="tiny",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
