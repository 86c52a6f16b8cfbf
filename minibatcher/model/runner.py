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


class Stopwatch:
    """How long a GPU works, by its own clock: CUDA events before its first and after its last work of a step."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []

    def start(self) -> None:
        if self.events:
            self.events[0].record(torch.cuda.current_stream(self.device))

    def stop(self) -> float | None:
        """Seconds since `start`, once all that was asked for is done; None on a CPU, where nobody waits for another."""
        if not self.events:
            return None
        start, end = self.events
        end.record(torch.cuda.current_stream(self.device))
        end.synchronize()  # no wait: the tokens have been read
        return start.elapsed_time(end) / 1000


class FlatRunner:
    """Selective batching (Orca, OSDI'22): linear layers over all tokens in a row, attention request by request.

    A matrix product need not know whose token is whose; only attention must. busy_s: seconds that a GPU worked in the
    last step; None on a CPU.
    """

    def __init__(self, model: PreTrainedModel, pool: KVPool, attention: Attention) -> None:
        self.model = model
        self.pool = pool
        self.attention = attention
        self.stopwatch = Stopwatch(pool.device)
        self.busy_s: float | None = None

    @torch.inference_mode()
    def execute(self, plan: Plan) -> dict[Request, int | None]:
        for request in (*plan.admitted, *plan.resumed):
            self.attention.begin(request)
        batch = flatten(plan, self.pool.block_size, self.pool.device)
        context = self.attention.prepare(batch)
        self.stopwatch.start()
        for swap in plan.swap_out:
            self.pool.copy_out(swap.source, swap.target)
        for swap in plan.swap_in:  # after all copies out: its blocks may be those that a victim just left
            self.pool.copy_in(swap.source, swap.target)
        with attending(self.model, context):
            logits = self.model(
                input_ids=batch.input_ids[None],
                position_ids=batch.positions[None],
                use_cache=False,
                logits_to_keep=batch.last_rows,  # only the rows that are sampled
            ).logits[0]
        tokens = sample(logits, batch.sampled)
        self.busy_s = self.stopwatch.stop()
        return dict(zip(batch.sampled, tokens, strict=True))
