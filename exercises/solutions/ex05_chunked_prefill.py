"""Solutions to exercise 5."""

from __future__ import annotations


def split_budget(gaps: list[int], budget: int) -> list[int]:
    shares = [0] * len(gaps)
    decodes = [i for i, gap in enumerate(gaps) if gap == 1]
    prompts = [i for i, gap in enumerate(gaps) if gap > 1]
    for i in decodes + prompts:
        shares[i] = min(gaps[i], budget)
        budget -= shares[i]
    return shares


def chunk_schedule(prompt: int, budget: int, streams: int) -> list[int]:
    room = budget - streams
    if room < 1:
        raise ValueError(f"a budget of {budget} with {streams} streams leaves nothing for the prompt")
    chunks = []
    while prompt > 0:
        chunks.append(min(room, prompt))
        prompt -= chunks[-1]
    return chunks


def stall(chunks: list[int], streams: int, base_ms: float, token_ms: float, mixed: bool) -> tuple[float, float]:
    if mixed:
        steps = [base_ms + token_ms * (chunk + streams) for chunk in chunks]
        return max(steps), sum(steps)
    steps = [base_ms + token_ms * chunk for chunk in chunks]
    return sum(steps) + base_ms + token_ms * streams, sum(steps)
