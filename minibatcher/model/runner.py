"""Stages 2 and up: a plan becomes a flat batch, the model turns it into logits, and those into tokens."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from minibatcher.memory.pool import KVPool
from minibatcher.model.attention import FlatBatch, Piece, attend, attending
from minibatcher.model.sampling import sample
from minibatcher.plan import Plan
from minibatcher.request import Request


class FlatRunner:
    """Selective batching (Orca, OSDI'22): linear layers over all tokens in a row, attention request by request."""

    def __init__(self, model: PreTrainedModel, pool: KVPool, max_num_seqs: int, max_model_len: int) -> None:
        self.model = model
        self.pool = pool
        self.device = model.device
        # Row = lane, column = position, entry = slot. Kept between steps: a step writes only its own tokens' entries.
        self.slots = torch.zeros(max_num_seqs, max_model_len, dtype=torch.int64, device=self.device)

    @torch.inference_mode()
    def execute(self, plan: Plan) -> dict[Request, int | None]:
        for request in plan.admitted:
            self.fill(request)
        requests, batch = self.flatten(plan)
        with attending(self.model, partial(attend, batch)):
            logits = self.model(
                input_ids=batch.input_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                logits_to_keep=batch.last_rows,
            ).logits[0]
        return dict(zip(requests, sample(logits, requests), strict=True))

    def fill(self, request: Request) -> None:
        """Begin the lane's row anew for a request that was just admitted.

        Entries behind its last token name its first slot. They are masked, but they are read, and must not be NaN.
        """
        row = self.slots[request.lane]
        row.fill_(request.block_table[0] * self.pool.block_size)
        row[: request.num_computed] = self.slots_of(request, 0, request.num_computed)

    def slots_of(self, request: Request, start: int, end: int) -> Tensor:
        """Slots of the request's tokens from `start` to `end`."""
        size = self.pool.block_size
        first, last = start // size, -(-end // size)
        blocks = torch.tensor(request.block_table[first:last], dtype=torch.int64)
        slots = (blocks[:, None] * size + torch.arange(size)).flatten()
        return slots[start - first * size : end - first * size]

    def flatten(self, plan: Plan) -> tuple[list[Request], FlatBatch]:
        """The plan's tokens in a row, and the requests to be sampled in the order of their last rows.

        A token alone (any decode, and a chunk of one) comes first, sorted by context so that neighbours can be
        attended to in one call; then the chunks, a request at a time.
        """
        size, table = self.pool.block_size, self.slots
        singles = sorted((request for request, n in plan.work.items() if n == 1), key=lambda r: r.num_computed)
        chunks = [(request, n) for request, n in plan.work.items() if n > 1]

        input_ids = [request.token_ids[request.num_computed] for request in singles]
        positions = [request.num_computed for request in singles]
        slots = [r.block_table[p // size] * size + p % size for r, p in zip(singles, positions, strict=True)]
        slot_mapping = [torch.tensor(slots, dtype=torch.int64)]
        lanes = torch.tensor([request.lane for request in singles], dtype=torch.int64, device=self.device)
        table[lanes, torch.tensor(positions, dtype=torch.int64, device=self.device)] = slot_mapping[0].to(self.device)

        pieces = []
        for start, end in _alike(positions):
            longest = positions[end - 1] + 1
            contexts = [position + 1 for position in positions[start:end]]
            pieces.append(Piece(start, end, contexts, table[:, :longest].index_select(0, lanes[start:end])))

        sampled = [(row, request) for row, request in enumerate(singles) if request.gap == 1]
        for request, n in chunks:
            start, row = request.num_computed, len(input_ids)
            input_ids += request.token_ids[start : start + n]
            positions += range(start, start + n)
            slot_mapping.append(self.slots_of(request, start, start + n))
            table[request.lane, start : start + n] = slot_mapping[-1]
            pieces.append(Piece(row, row + n, [start + n], table[request.lane : request.lane + 1, : start + n]))
            if n == request.gap:
                sampled.append((row + n - 1, request))

        move = partial(torch.Tensor.to, device=self.device)
        return [request for _, request in sampled], FlatBatch(
            input_ids=move(torch.tensor(input_ids)),
            positions=move(torch.tensor(positions)),
            slot_mapping=move(torch.cat(slot_mapping)),
            last_rows=move(torch.tensor([row for row, _ in sampled], dtype=torch.int64)),
            pieces=pieces,
            pool=self.pool,
        )


def _alike(contexts: list[int]) -> list[tuple[int, int]]:
    """Cut ascending contexts into runs whose longest is at most twice the shortest.

    A batched call costs all its rows as much as the longest: 15 rows at 60 tokens with one at 1,800 took 570 ms a
    step in one call, 197 in runs.
    """
    cuts = []
    start = 0
    for i in range(1, len(contexts) + 1):
        if i == len(contexts) or contexts[i] + 1 > 2 * (contexts[start] + 1):
            cuts.append((start, i))
            start = i
    return cuts
