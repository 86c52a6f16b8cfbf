"""One idea for the open challenge; there are better ones."""

from __future__ import annotations

from minibatcher.plan import Plan
from minibatcher.schedulers.preemptive import PreemptiveScheduler


class MyScheduler(PreemptiveScheduler):
    def schedule(self) -> Plan:
        # Who is too late for the objective can wait on: to serve it now would only make the next one late too.
        now = self.clock.now()
        self.waiting.sort(key=lambda request: (now - (request.arrival or 0.0) > 0.9, request.rank))
        return super().schedule()
