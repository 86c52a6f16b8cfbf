"""What it costs to give way: a victim's keys and values are computed again, or copied to the CPU and back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GivingWay:
    """Seconds on the device at hand.

    token: to compute a token at the rate of long prompts. step: of a step so small that its time is spent on reading
    the weights. pair: of attention for one (query, key) pair. swap, block: to copy a request, whatever its size, and
    each of its blocks, in one direction.
    """

    token: float
    step: float
    pair: float
    swap: float
    block: float

    def swap_s(self, blocks: int) -> float:
        """There and back."""
        return 2 * (self.swap + blocks * self.block)

    def recompute_s(self, tokens: int, decodes: int, budget: int) -> float:
        """What computing the tokens again adds to steps that `decodes` others need anyway, `budget` tokens a step.

        A step of few tokens takes as long as reading the weights does, so the first tokens of a chunk ride along for
        nothing.
        """
        chunk = max(1, budget - decodes)
        full, rest = divmod(tokens, chunk)
        return full * self.more(decodes, chunk) + self.more(decodes, rest) + self.pair * tokens * tokens / 2

    def more(self, decodes: int, tokens: int) -> float:
        return max(self.token * (decodes + tokens), self.step) - max(self.token * decodes, self.step)
