"""Stages 2 and up: a plan becomes a flat batch, the model turns it into logits, and those into tokens."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from minibatcher.memory.pool import KVPool
from minibatcher.model.attention import Attention, attending
from minibatcher.model.batch import flatten
from minibatcher.model.sampling import sample
from minibatcher.plan import Plan
from minibatcher.request import Request


class FlatRunner:
    """Selective batching (Orca, OSDI'22): linear layers over all tokens in a row, attention request by request.

    A matrix product need not know whose token is whose; only attention must.
    """

    def __init__(self, model: PreTrainedModel, pool: KVPool, attention: Attention) -> None:
        self.model = model
        self.pool = pool
        self.attention = attention

    @torch.inference_mode()
    def execute(self, plan: Plan) -> dict[Request, int | None]:
        for swap in plan.swap_out:
            self.pool.copy_out(swap.source, swap.target)
        for swap in plan.swap_in:  # after all copies out: its blocks may be those that a victim just left
            self.pool.copy_in(swap.source, swap.target)
        for request in (*plan.admitted, *plan.resumed):
            self.attention.begin(request)
        batch = flatten(plan, self.pool.block_size, self.pool.device)
        with attending(self.model, self.attention.prepare(batch)):
            logits = self.model(
                input_ids=batch.input_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                logits_to_keep=batch.last_rows,  # only the rows that are sampled
            ).logits[0]
        return dict(zip(batch.sampled, sample(logits, batch.sampled), strict=True))
