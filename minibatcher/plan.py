"""A plan: what one step will do, decided before the model runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from minibatcher.request import Request


@dataclass(slots=True)
class Plan:
    """One step's decisions: a budget that is spent.

    work: how many tokens of whose gap, in the order in which the model sees them.
    rectangle: the rows of a padded batch (stage 1); finished requests keep their row until the batch has drained.
    waiting: the first request that was left out, why, and how many stand behind it.
    wait_until: nothing is scheduled on purpose until then (stage 1 waits for its batch to fill).
    """

    budget: int | None = None  # tokens left to schedule; None is no limit (stages 1 to 4)
    work: dict[Request, int] = field(default_factory=dict)
    rectangle: list[Request] | None = None
    admitted: list[Request] = field(default_factory=list)
    waiting: tuple[Request, str, int] | None = None
    wait_until: float | None = None

    def add(self, request: Request, n: int) -> None:
        """Schedule the next n tokens of the request's gap."""
        self.work[request] = n
        if self.budget is not None:
            self.budget -= n
