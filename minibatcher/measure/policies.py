"""Scheduling and memory, each switched on alone: the vLLM paper's comparison of memory policies (SOSP'23, section 6).

Every pair runs on the same pool and the same cost model; none pays for gathering, so that only the policies differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from minibatcher.engine import Engine
from minibatcher.measure.costs import CostModel
from minibatcher.measure.metrics import Summary, summary
from minibatcher.measure.simulator import SimulatedRunner, VirtualClock, simulated_requests
from minibatcher.measure.workloads import Job
from minibatcher.memory.allocator import Allocator
from minibatcher.memory.blocks import BlockAllocator
from minibatcher.memory.contiguous import ContiguousAllocator, Reserve
from minibatcher.schedulers.base import Scheduler
from minibatcher.schedulers.iteration import IterationScheduler
from minibatcher.schedulers.preemptive import PreemptiveScheduler
from minibatcher.schedulers.static import StaticScheduler
from minibatcher.trace import Trace

SCHEDULERS: dict[str, type[Scheduler]] = {"static": StaticScheduler, "iteration": IterationScheduler}
SHARES = ("used", "reserved", "internal", "external")


@dataclass(frozen=True)
class Policy:
    """shares: of the pool, averaged over the run's busy time; the rest is free and could be used."""

    scheduling: str
    memory: str
    figures: Summary
    shares: dict[str, float]


def policies(
    costs: CostModel,
    jobs: Sequence[Job],
    *,
    num_blocks: int,
    max_model_len: int,
    block_size: int = 16,
    max_num_seqs: int = 256,
    max_tokens: int | None = None,
) -> Iterator[Policy]:
    """Serve the jobs under each pair in turn: static or iteration-level scheduling, with contiguous ranges (reserved
    by each rule) or with pages; and pages on demand, which need a scheduler that preempts.

    max_tokens: as for `simulated_requests`; `max_tokens` ranges and pages are reserved for it. Raises ValueError for a
    pool that could not hold a request of max_model_len.
    """
    memories: dict[str, Callable[[], Allocator]] = {
        f"ranges, {rule}": partial(ContiguousAllocator, num_blocks, block_size, max_model_len, rule)
        for rule in get_args(Reserve)
    }
    memories["paged"] = partial(BlockAllocator, num_blocks, block_size, max_model_len)
    pairs = [(scheduling, SCHEDULERS[scheduling], memory) for scheduling in SCHEDULERS for memory in memories]
    pairs.append(("iteration", PreemptiveScheduler, "paged"))
    for scheduling, kind, memory in pairs:
        settings: dict[str, Any] = {"max_num_seqs": max_num_seqs, "max_model_len": max_model_len}
        if kind is PreemptiveScheduler:  # no budget: prompts are computed in one piece, as by the others
            settings["max_num_batched_tokens"] = max_num_seqs * max_model_len
        clock = VirtualClock()
        scheduler = kind(allocator=memories[memory](), **settings)
        # The padded rectangle is told from the flat batch by the plan, so the trace is one of stage 1 where it is one.
        meta = {"stage": scheduling, "settings": settings}
        trace = Engine(scheduler, SimulatedRunner(costs, clock), clock, meta=meta).run(
            simulated_requests(jobs, max_tokens)
        )
        name = "paged, on demand" if kind is PreemptiveScheduler else memory
        yield Policy(scheduling, name, summary(trace), pool_shares(trace))


def pool_shares(trace: Trace) -> dict[str, float]:
    """How the pool was used, in shares of it, averaged over the time in which something was computed."""
    steps = [(record.kv, record.t1 - record.t0) for record in trace if record.kv and record.work]
    seconds = sum(length for _, length in steps) or 1.0
    return {name: sum(kv[name] / kv["total"] * length for kv, length in steps) / seconds for name in SHARES}
