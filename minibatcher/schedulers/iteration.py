"""Stages 2 to 4, iteration-level scheduling (Orca, OSDI'22): the set of requests is chosen anew at every step."""

from __future__ import annotations

from typing import Any

from minibatcher.memory.allocator import Allocator
from minibatcher.plan import Plan
from minibatcher.schedulers.base import Scheduler


class IterationScheduler(Scheduler):
    """First come, first served: whoever waits first joins as soon as a lane and room for all its tokens are free.

    Room is reserved in full at admission, so a running request never has to ask for more.
    """

    allocator: Allocator

    def __init__(self, *, allocator: Allocator, **shared: Any) -> None:
        super().__init__(allocator=allocator, **shared)

    def schedule(self) -> Plan:
        plan = Plan()
        while self.waiting:
            if not self.free_lanes:
                self.leave_waiting(plan, f"all {self.max_num_seqs} lanes are taken")
                break
            head = self.waiting[0]
            why_not = self.allocator.admit(head, self.allocator.reservation(head))
            if why_not:  # nobody overtakes: those behind the head wait with it
                self.leave_waiting(plan, why_not)
                break
            self.admit(plan)
        for request in self.running:  # those who were here before come first
            plan.add(request, request.gap)
        return plan
