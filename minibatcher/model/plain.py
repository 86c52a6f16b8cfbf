"""Greedy generation for one prompt, in a few lines of transformers: without a cache of keys and values, and with one.

The notebooks compare every stage's tokens with these. Both give the new tokens, and how many tokens the model read for
each of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel


@torch.inference_mode()
def without_cache(model: PreTrainedModel, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], list[int]]:
    ids, read = list(prompt), []
    for _ in range(max_tokens):
        new = ids
        logits = model(torch.tensor([new], device=model.device), use_cache=False).logits
        read.append(len(new))
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :], read


@torch.inference_mode()
def with_cache(model: PreTrainedModel, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], list[int]]:
    ids, read = list(prompt), []
    cache = DynamicCache(config=model.config)
    cached = {"use_cache": True, cache_argument(model): cache}
    for _ in range(max_tokens):
        new = ids[cache.get_seq_length() :]  # all that has no keys and values yet
        logits = model(torch.tensor([new], device=model.device), **cached).logits
        read.append(len(new))
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :], read


def cache_argument(model: PreTrainedModel) -> str:
    """What the model calls its cache: transformers renamed it in 5.24, and we support versions of both kinds."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
