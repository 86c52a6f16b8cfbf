"""Stage 1, static batching: a batch at a time, and nobody joins until all have left."""

from __future__ import annotations

import heapq
from typing import Any

from minibatcher.plan import Plan
from minibatcher.request import Request
from minibatcher.schedulers.base import Scheduler
from minibatcher.trace import StepRecord, Work


class StaticScheduler(Scheduler):
    """Close only the gaps of one set of requests until all of them are done.

    max_wait_s: how long the first request waits for the batch to fill (dynamic batching, as model servers call it).
    """

    def __init__(self, *, max_wait_s: float = 0.0, **shared: Any) -> None:
        super().__init__(**shared)
        if not max_wait_s >= 0:
            raise ValueError(f"max_wait_s={max_wait_s} is not allowed: it must be 0 seconds or more")
        self.max_wait_s = max_wait_s
        self.batch: list[Request] = []  # the padded rectangle: row i is request i, finished or not

    def schedule(self) -> Plan:
        plan = Plan()
        if not self.batch and self.waiting:
            # Dynamic batching, off by default: the batch may wait to fill.
            full_or_late = self.waiting[0].arrival + self.max_wait_s  # type: ignore[operator]
            if len(self.waiting) < self.max_num_seqs and self.clock.now() < full_or_late:
                plan.wait_until = full_or_late
                here = len(self.waiting)
                self.leave_waiting(plan, f"{here} of {self.max_num_seqs} requests are here; the batch may still fill")
                return plan
            while self.waiting and self.free_lanes:
                head = self.waiting[0]
                # Stage 1 itself has no allocator. With one, paging can be switched on alone, without stage 2.
                if self.allocator and (why_not := self.allocator.admit(head, self.allocator.reservation(head))):
                    self.leave_waiting(plan, why_not)
                    break
                self.batch.append(self.admit(plan))
        if self.waiting and not plan.waiting:
            left, size = len(self.running), len(self.batch)
            self.leave_waiting(plan, f"{left} of the batch's {size} requests must finish before anyone joins")
        plan.rectangle = self.batch
        for request in self.running:
            plan.add(request, request.gap)
        return plan

    def give_lane_back(self, request: Request) -> None:
        """Not yet: a finished request's row is computed until the batch has drained."""

    def drop_finished(self) -> None:
        super().drop_finished()
        if not self.running:
            for request in self.batch:
                heapq.heappush(self.free_lanes, request.lane)
            self.batch = []

    def describe(self, plan: Plan, record: StepRecord) -> None:
        super().describe(plan, record)
        rows = plan.rectangle or []
        width = max(plan.work.values(), default=0)
        for request in rows:
            if wasted := width - plan.work.get(request, 0):  # padding before its prompt, or the row of a finished one
                context = request.num_computed + plan.work.get(request, 0)
                record.work.append(Work(request.request_id, request.lane, "wasted", wasted, context))
