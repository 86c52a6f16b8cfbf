"""Stage 5, chunked prefill (Sarathi-Serve, OSDI'24): a big gap may be closed in parts; a budget bounds each step."""

from __future__ import annotations

from typing import Any

from minibatcher.memory.allocator import Allocator
from minibatcher.plan import Plan
from minibatcher.request import Request
from minibatcher.schedulers.base import Scheduler


class ChunkedScheduler(Scheduler):
    """Decodes first, then prompts in chunks, while the budget lasts; so no prompt can stall those who decode.

    max_num_batched_tokens: tokens a step may compute. long_prefill_token_threshold: tokens of one prompt that a step
    may compute at most; 0 is no limit. Raises ValueError for a budget that could not serve a decode in every lane.

    (Decodes first is Sarathi-Serve's rule, and what vLLM's documentation says. vLLM V1's code walks its running
    requests in order of admission, so there an older prompt may come before a decode.)
    """

    allocator: Allocator

    def __init__(
        self,
        *,
        allocator: Allocator,
        max_num_batched_tokens: int = 512,
        long_prefill_token_threshold: int = 0,
        **shared: Any,
    ) -> None:
        super().__init__(allocator=allocator, **shared)
        if max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={max_num_batched_tokens} is less than max_num_seqs={self.max_num_seqs}: then "
                "not everybody who runs could get a token in a step. Raise the first or lower the second"
            )
        if long_prefill_token_threshold < 0:
            raise ValueError(
                f"long_prefill_token_threshold={long_prefill_token_threshold} is not allowed: "
                "it must be 1 token or more, or 0 for no limit"
            )
        self.max_num_batched_tokens = max_num_batched_tokens
        self.long_prefill_token_threshold = long_prefill_token_threshold

    def schedule(self) -> Plan:
        plan = Plan(budget=self.max_num_batched_tokens)
        prompts = []
        for request in self.running:
            if len(request.token_ids) - request.num_computed > 1:
                prompts.append(request)
            else:
                plan.add(request, 1)
        for request in prompts:
            self.add_chunk(plan, request)
        while self.waiting:
            if why_not := self.no_place(plan):
                self.leave_waiting(plan, why_not)
                break
            head = self.waiting[0]
            if why_not := self.allocator.admit(head, self.allocator.reservation(head)):
                self.leave_waiting(plan, why_not)
                break
            self.add_chunk(plan, self.admit(plan))
        return plan

    def no_place(self, plan: Plan) -> str | None:
        """Why nobody may join this step, whatever the memory."""
        if not self.free_lanes:
            return f"all {self.max_num_seqs} lanes are taken"
        if not plan.budget:
            return f"the step's budget of {self.max_num_batched_tokens} tokens is spent"
        return None

    def add_chunk(self, plan: Plan, request: Request) -> None:
        """As much of the request's gap as the budget and the threshold allow; nothing when the budget is spent."""
        if chunk := min(self.chunk(request), plan.budget):  # type: ignore[type-var]
            plan.add(request, chunk)

    def chunk(self, request: Request) -> int:
        """The most that one step computes for the request."""
        return min(request.gap, self.long_prefill_token_threshold or request.gap)
