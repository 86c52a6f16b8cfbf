"""The outside reference: an argmax loop over transformers' own forward, one prompt at a time, without any cache."""

from __future__ import annotations

from collections.abc import Iterable

import torch

MARGIN = 1e-4  # where the two best logits are nearer than this, sums in another order may choose the other token


@torch.inference_mode()
def next_logits(model, token_ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0, -1]


def greedy(model, prompt: list[int], max_tokens: int, eos: Iterable[int] = ()) -> list[int]:
    """The tokens that the model gives to the prompt alone; an end token is the last one."""
    ids, eos = list(prompt), set(eos)
    for _ in range(max_tokens):
        ids.append(int(next_logits(model, ids).argmax()))
        if ids[-1] in eos:
            break
    return ids[len(prompt) :]


def check_greedy(model, prompt: list[int], output: list[int], max_tokens: int, eos: Iterable[int] = ()) -> None:
    """Fail unless `output` is the reference's, token for token.

    Where the reference's two best logits are nearer than MARGIN, either token passes, and the loop goes on with the
    one that was given: then the rest is still compared.
    """
    eos = set(eos)
    ids = list(prompt)
    assert 0 < len(output) <= max_tokens, f"{len(output)} tokens where 1 to {max_tokens} must come"
    for i, token in enumerate(output):
        best = next_logits(model, ids).topk(2)
        if token != best.indices[0]:
            margin = float(best.values[0] - best.values[1])
            near = token == best.indices[1] and margin < MARGIN
            assert near, f"token {i} is {token}, the reference gives {int(best.indices[0])} (margin {margin:.2g})"
        ids.append(token)
        assert (token in eos) <= (i == len(output) - 1), f"token {i} is an end token, and the output goes on"
    assert len(output) == max_tokens or output[-1] in eos, f"the output ends after {len(output)} tokens, without an end"
