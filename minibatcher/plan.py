"""A plan: what one step will do, decided before the model runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from minibatcher.request import Request
from minibatcher.trace import Preemption


class Swap(NamedTuple):
    """Copy the request's blocks: source[i] to target[i], in every layer."""

    request: Request
    source: list[int]
    target: list[int]


@dataclass(slots=True)
class Plan:
    """One step's decisions: a budget that is spent.

    work: how many tokens of whose gap, in the order in which the model sees them.
    rectangle: the rows of a padded batch (stage 1); finished requests keep their row until the batch has drained.
    admitted, resumed: who joins, for the first time or after a preemption. preempted: who gave way.
    swap_out, swap_in: blocks to copy before the model runs; first all copies out, then all copies in.
    waiting: the first request that was left out, why, and how many stand behind it.
    wait_until: nothing is scheduled on purpose until then (stage 1 waits for its batch to fill).
    """

    budget: int | None = None  # tokens left to schedule; None is no limit (stages 1 to 4)
    work: dict[Request, int] = field(default_factory=dict)
    rectangle: list[Request] | None = None
    admitted: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    preempted: dict[Request, Preemption] = field(default_factory=dict)
    swap_out: list[Swap] = field(default_factory=list)
    swap_in: list[Swap] = field(default_factory=list)
    waiting: tuple[Request, str, int] | None = None
    wait_until: float | None = None

    def add(self, request: Request, n: int) -> None:
        """Schedule the next n tokens of the request's gap."""
        self.work[request] = n
        if self.budget is not None:
            self.budget -= n
