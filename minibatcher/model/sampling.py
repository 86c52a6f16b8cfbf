"""From logits to tokens: greedy, or drawn with the request's own settings and seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from minibatcher.request import Request, SamplingParams


def sample(logits: Tensor, requests: Sequence[Request]) -> list[int | None]:
    """One token for each row of logits `[len(requests), vocab]`; None where a row is not finite.

    A row may forbid tokens with -inf, but not all of them; NaN and +inf are faults.
    """
    highest, best = logits.max(dim=-1)  # a NaN anywhere in a row makes its maximum NaN
    tokens: list[int | None] = best.tolist()
    for row, finite in enumerate(highest.isfinite().tolist()):
        request = requests[row]
        if not finite:
            tokens[row] = None
        elif not _is_argmax(request):
            tokens[row] = draw(process(logits[row].float(), request), request)
    return tokens


def _is_argmax(request: Request) -> bool:
    params = request.params
    return params.temperature == 0 and params.repetition_penalty == 1 and not _stops_forbidden(request)


def _stops_forbidden(request: Request) -> bool:
    return request.num_tokens - request.num_prompt_tokens < request.params.min_tokens


def process(logits: Tensor, request: Request) -> Tensor:
    """Apply the request's settings to its logits `[vocab]`, in the order of transformers' logits processors."""
    params = request.params
    logits = logits.clone()
    if params.repetition_penalty != 1:
        seen = torch.tensor(sorted(set(request.token_ids)), device=logits.device)
        old = logits[seen]
        logits[seen] = torch.where(old < 0, old * params.repetition_penalty, old / params.repetition_penalty)
    if _stops_forbidden(request) and request.stop_ids:
        logits[sorted(request.stop_ids)] = -torch.inf
    if params.temperature == 0:
        return logits
    logits = logits / max(params.temperature, 1e-20)  # a smaller one draws no differently, and could overflow
    if params.top_k > 0:
        kth = logits.topk(min(params.top_k, len(logits))).values[-1]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if params.top_p < 1:
        ascending, order = logits.sort()
        # A token goes when it and all less likely ones together weigh at most 1 - top_p; so the one that crosses
        # the threshold stays, and the most likely one always does.
        drop = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - params.top_p
        drop[-1] = False
        logits = logits.index_fill(0, order[drop], -torch.inf)
    if params.min_p > 0:
        probs = logits.softmax(dim=-1)
        logits = logits.masked_fill(probs < params.min_p * probs.max(), -torch.inf)
    return logits


def draw(logits: Tensor, request: Request) -> int | None:
    """The most likely token at temperature 0; else a draw from softmax(logits)."""
    best = int(logits.argmax())
    if not logits[best].isfinite():
        return None  # the settings forbid every token
    if request.params.temperature == 0:
        return best
    cumulative = logits.double().softmax(dim=-1).cumsum(dim=-1)
    u = uniform(request.params, index=request.num_tokens - request.num_prompt_tokens)
    # The first token whose cumulative probability exceeds u: never one of probability 0.
    token = int(torch.searchsorted(cumulative, u * cumulative[-1], right=True))
    return token if token < len(logits) else best  # rounding can leave u at the very end


def uniform(params: SamplingParams, index: int, child: int = 0) -> float:
    """A number in [0, 1). With a seed it depends on (seed, child, index of the token) alone.

    So a seeded request has no generator whose state could be shared with a neighbour or lost by preemption.
    """
    if params.seed is None:
        return random.random()
    return random.Random(f"{params.seed}/{child}/{index}").random()
