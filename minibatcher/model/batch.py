"""A plan becomes a flat batch: the tokens of several requests in a row, without padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minibatcher.plan import Plan
from minibatcher.request import Request


@dataclass
class FlatBatch:
    """The work of one step: T tokens.

    input_ids, positions, slot_mapping: [T]. A token stands at its own request's position, and its keys and values go
    to its entry of slot_mapping. work: whose tokens they are, in order, and how many; first the tokens that come alone
    (every decode, and a chunk of one), by ascending context, so that neighbours are alike; then the chunks.
    sampled: the requests whose gap closes. last_rows: the row of each one's last token.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    work: list[tuple[Request, int]]
    sampled: list[Request]
    last_rows: Tensor

    @property
    def num_singles(self) -> int:
        return next((i for i, (_, n) in enumerate(self.work) if n > 1), len(self.work))


def flatten(plan: Plan, block_size: int, device: torch.device | str) -> FlatBatch:
    singles = sorted((request for request, n in plan.work.items() if n == 1), key=lambda r: r.num_computed)
    chunks = [(request, n) for request, n in plan.work.items() if n > 1]

    input_ids = [request.token_ids[request.num_computed] for request in singles]
    positions = [request.num_computed for request in singles]
    size = block_size
    slots = [r.block_table[p // size] * size + p % size for r, p in zip(singles, positions, strict=True)]
    slot_mapping = [torch.tensor(slots, dtype=torch.int64)]
    sampled = [(row, request) for row, request in enumerate(singles) if request.gap == 1]
    for request, n in chunks:
        start = request.num_computed
        input_ids += request.token_ids[start : start + n]
        positions += range(start, start + n)
        slot_mapping.append(slots_of(request, start, start + n, block_size))
        if n == request.gap:
            sampled.append((len(input_ids) - 1, request))

    return FlatBatch(
        input_ids=torch.tensor(input_ids).to(device),
        positions=torch.tensor(positions).to(device),
        slot_mapping=torch.cat(slot_mapping).to(device),
        work=[(request, 1) for request in singles] + chunks,
        sampled=[request for _, request in sampled],
        last_rows=torch.tensor([row for row, _ in sampled], dtype=torch.int64).to(device),
    )


def slots_of(request: Request, start: int, end: int, block_size: int) -> Tensor:
    """The slots of the request's tokens from `start` to `end`: [end - start]."""
    first, last = start // block_size, -(-end // block_size)
    blocks = torch.tensor(request.block_table[first:last], dtype=torch.int64)
    slots = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()
    return slots[start - first * block_size : end - first * block_size]
