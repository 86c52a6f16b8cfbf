"""How many requests of one workload fit in one small pool, for each way of keeping keys and values.

The real schedulers and allocators run; a step takes one second of virtual time. A page of the vLLM paper (SOSP'23,
figure 2 and section 6.2), with the numbers of your own workload.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from minibatcher.measure.costs import CostModel
from minibatcher.measure.metrics import summary
from minibatcher.measure.simulator import simulated
from minibatcher.request import Request, SamplingParams
from minibatcher.stages import STAGES, fill_in, settings_for

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "ranges, max_model_len": ("iteration", {"reserve": "max"}),
    "ranges, power of two": ("iteration", {"reserve": "pow2"}),
    "ranges, max_tokens": ("iteration", {"reserve": "max_tokens"}),
    "ranges, oracle": ("iteration", {"reserve": "oracle"}),
    "blocks, max_tokens": ("paged", {}),
    "blocks, on demand": ("preemptive", {}),
}


@dataclass(frozen=True)
class Length:
    """Tokens of one request. output: how many it really gives, which only `oracle` and `pow2` know beforehand."""

    prompt: int
    max_tokens: int
    output: int


@dataclass(frozen=True)
class Fit:
    first: int  # requests that run in the first step, when all of them wait
    most: int  # requests that run at the same time
    mean: float  # over all steps
    steps: int
    preemptions: int


def how_many_fit(
    lengths: Iterable[Length], num_blocks: int = 64, block_size: int = 16, max_model_len: int = 256
) -> dict[str, Fit]:
    """All requests arrive at once, and there are as many lanes as requests: only memory holds anybody back."""
    lengths = list(lengths)
    fits = {}
    for way, (stage, own) in WAYS.items():
        pool = dict(num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len)
        settings = settings_for(stage, {**own, **pool, "max_num_seqs": len(lengths)})
        if "max_num_batched_tokens" in settings:
            settings["max_num_batched_tokens"] = sum(length.prompt for length in lengths)  # no budget in the way
        fill_in(STAGES[stage], settings, "none", max_model_len, lambda: num_blocks)
        nothing_but_time = CostModel(token=0, sample=0, weights=0, pair=0, kv=0, overhead=1.0)
        engine = simulated(STAGES[stage], settings, nothing_but_time, {"model": "none"})
        trace = engine.run(
            Request([0] * n.prompt, SamplingParams(max_tokens=n.max_tokens, ignore_eos=True), output_len=n.output)
            for n in lengths
        )
        numbers = summary(trace)
        fits[way] = Fit(
            first=len({work.id for work in trace[0].work}),
            most=numbers.max_running,
            mean=numbers.mean_running,
            steps=numbers.steps,
            preemptions=sum(len(record.preempted) for record in trace),
        )
    return fits
