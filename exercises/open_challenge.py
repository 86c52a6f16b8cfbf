"""Open challenge, unscored: write `schedule()`.

    minibatcher grade challenge         the invariants, and the scoreboard

A modelled H100 serves an 8B model to more people than it can. What counts is *goodput*: how many requests a second end
with their first token within 1 s and no gap between two tokens above 50 ms. The traces that count are others than those
you see here.

You may decide anything: who joins, in which order, how large the chunks are, who gives way. What must hold is what
holds for every engine: each request ends once with the tokens that it would get alone, no block has two owners, no step
computes more than `max_num_batched_tokens`, no more run than there are lanes, and nobody is left in the end.
"""

from __future__ import annotations

from minibatcher.plan import Plan
from minibatcher.schedulers.preemptive import PreemptiveScheduler


class MyScheduler(PreemptiveScheduler):
    """The package's stage 6 is a good place to begin: read its schedule(), then write yours.

    What is there to decide with: self.waiting and self.running (request.arrival, request.num_tokens, request.gap),
    self.clock.now(), self.allocator.free, self.free_lanes, self.max_num_batched_tokens. `return super().schedule()` is
    a schedule that holds all rules.
    """

    def schedule(self) -> Plan:
        raise NotImplementedError("the open challenge")
