"""Stage 6, preemption (the vLLM paper, SOSP'23, section 4.5): blocks on demand; if none is left, a victim gives way."""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Mapping
from typing import Any

from minibatcher.memory.blocks import BlockAllocator
from minibatcher.memory.giving_way import GivingWay
from minibatcher.plan import Plan, Swap
from minibatcher.request import FinishReason, Request, Status
from minibatcher.schedulers.base import RANK, RUNNING
from minibatcher.schedulers.chunked import ChunkedScheduler
from minibatcher.trace import Preemption, StepRecord


class PreemptiveScheduler(ChunkedScheduler):
    """Running and waiting requests are sorted by `rank`; the victim is always the last of those who run.

    preemption: `recompute` drops a victim's keys and values, `swap` moves them to `num_cpu_blocks` blocks of CPU memory
    and falls back to recompute when those are full, `auto` takes what `giving_way` says is cheaper. policy: `fcfs`, or
    `priority` (a smaller number is more important).
    aging_s: with `priority`, waiting that many seconds counts as one level of importance. max_tokens_per_turn: a
    request that has decoded so many tokens since it was admitted makes way when somebody waits for its place.
    watermark: share of the pool that an admission leaves free while others run.
    """

    allocator: BlockAllocator

    def __init__(
        self,
        *,
        preemption: str = "recompute",
        num_cpu_blocks: int | None = None,
        policy: str = "fcfs",
        aging_s: float | None = None,
        max_tokens_per_turn: int | None = None,
        watermark: float = 0.01,
        giving_way: GivingWay | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        if preemption not in ("recompute", "swap", "auto"):
            raise ValueError(f"preemption={preemption!r} is unknown: choose recompute, swap or auto")
        if preemption == "auto" and giving_way is None:
            raise ValueError("preemption='auto' compares what both cost on a device: say it with giving_way")
        if policy not in ("fcfs", "priority"):
            raise ValueError(f"policy={policy!r} is unknown: choose fcfs or priority")
        if aging_s is not None and (policy != "priority" or not aging_s > 0):
            raise ValueError(f"aging_s={aging_s}, policy={policy!r}: ageing takes seconds above 0, policy='priority'")
        if max_tokens_per_turn is not None and max_tokens_per_turn < 1:
            raise ValueError(f"max_tokens_per_turn={max_tokens_per_turn} is not allowed: 1 or more, or None (no turns)")
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark={watermark} is not allowed: it is a share of the pool, from 0 to below 1")
        self.by_priority = policy == "priority"
        self.aging_s = aging_s
        self.max_tokens_per_turn = max_tokens_per_turn
        self.watermark_blocks = math.ceil(watermark * self.allocator.num_blocks)
        cpu_blocks = self.allocator.num_blocks if num_cpu_blocks is None else num_cpu_blocks
        if cpu_blocks < 0:
            raise ValueError(f"num_cpu_blocks={num_cpu_blocks} is not allowed: 0 or more, or None for num_blocks")
        if num_cpu_blocks and preemption == "recompute":
            raise ValueError(
                f"num_cpu_blocks={num_cpu_blocks}: preemption='recompute' moves nothing to the CPU; "
                "leave it out, or take preemption='swap'"
            )
        self.cpu: BlockAllocator | None = None  # who owns which block of CPU memory
        self.giving_way = giving_way if preemption == "auto" else None
        if preemption != "recompute" and cpu_blocks:
            self.cpu = BlockAllocator(cpu_blocks, self.allocator.block_size, self.max_model_len)

    def schedule(self) -> Plan:
        plan = Plan(budget=self.max_num_batched_tokens)
        self.make_way(plan)
        prompts = []
        for request in list(self.running):
            if request.status is not RUNNING:  # it gave way in this step
                continue
            if len(request.token_ids) - request.num_computed > 1:
                prompts.append(request)
            elif self.grow(plan, request):
                plan.add(request, 1)
        # A victim ranks behind the one who needs its block, and those are visited in order of rank: so no victim was
        # in the plan already. Prompts ask for no blocks, for admission took them all.
        for request in prompts:
            if request.status is RUNNING:
                self.add_chunk(plan, request)
        while self.waiting:
            head = self.waiting[0]
            why_not = self.no_place(plan) or self.no_room(plan, head)
            if why_not or (why_not := self.allocator.admit(head, head.num_tokens)):
                self.leave_waiting(plan, why_not)
                break
            self.add_chunk(plan, self.admit(plan))
        return plan

    # -- who gives way ------------------------------------------------------------------------------------------------

    def grow(self, plan: Plan, request: Request) -> bool:
        """Make room for the request's next token; victims give way until there is. False when it gave way itself."""
        while len(request.block_table) * self.allocator.block_size < len(request.token_ids):
            if blocks := self.allocator.take(1):
                request.block_table += blocks
                self.tell_blocks("take", request, blocks)
                continue
            victim = self.running[-1]
            self.preempt(plan, victim, "memory", f"request {request.request_id!r} needs a block, 0 free")
            if victim is request:
                return False
        return True

    def make_way(self, plan: Plan) -> None:
        """Give the first who waits a place in this step if it finds none: those whose turn is over yield theirs, then
        less important ones give way, the last in rank first. Nobody does who is not needed, or when it is not enough.
        """
        victims = self.may_give_way()
        if not victims:
            return
        # What admission will find in this step if they all go; those who stay have the block of their next token then.
        head = self.waiting[0]
        stay = [request for request in self.running if request not in victims]
        lanes = self.max_num_seqs - len(stay)
        blocks = self.allocator.num_blocks - sum(map(self.blocks_of, stay)) - self.blocks_of(head)
        if blocks < (self.watermark_blocks if stay else 0):
            return
        for request in reversed(list(victims)):  # whom it does not take stays, the most important first
            if lanes > 1 and blocks - self.blocks_of(request) >= self.watermark_blocks:
                lanes, blocks = lanes - 1, blocks - self.blocks_of(request)
                stay.append(request)
                del victims[request]
        if sum(map(self.chunk, stay)) >= self.max_num_batched_tokens:
            return  # their prompts spend the budget
        for victim, cause in victims.items():
            if cause == "turn":
                victim.rank = self.rank(victim, self.clock.now())
            why = {"turn": "its turn is over", "priority": "it is less important"}[cause]
            self.preempt(plan, victim, cause, f"{why}, and request {head.request_id!r} waits")

    def may_give_way(self) -> dict[Request, str]:
        """Who may be asked to, for the sake of the first who waits, and the cause."""
        causes: dict[Request, str] = {}
        if not self.waiting:
            return causes
        head, now = self.waiting[0], self.clock.now()
        if self.max_tokens_per_turn is not None:
            for request in reversed(self.running):
                over = request.num_tokens - request.turn_began >= self.max_tokens_per_turn
                if over and head.rank < self.rank(request, now):  # else it would only come back at once
                    causes[request] = "turn"
        for request in reversed(self.running):
            if request.rank[0] <= head.rank[0]:
                break
            causes.setdefault(request, "priority")
        return causes

    def blocks_of(self, request: Request) -> int:
        """What it takes to hold all its tokens: what a running request has once its next step is scheduled."""
        return self.allocator.blocks_for(request.num_tokens)

    def no_room(self, plan: Plan, head: Request) -> str | None:
        """Why memory does not let `head` join this step."""
        if head in plan.preempted:
            return "it gave way in this step"
        if any(preemption.cause == "memory" for preemption in plan.preempted.values()):
            return "a running request just gave way for want of memory"
        spare = self.watermark_blocks if self.running else 0
        if self.blocks_of(head) + spare > self.allocator.free:
            also = f" and {spare} to spare" if spare else ""
            return f"needs {self.blocks_of(head)} blocks{also}, {self.allocator.free} free"
        return None

    def preempt(self, plan: Plan, victim: Request, cause: str, why: str) -> None:
        """Take a running request's place. It waits again at its rank, so nobody who came later gets ahead of it."""
        self.running.remove(victim)
        heapq.heappush(self.free_lanes, victim.lane)
        written = self.allocator.blocks_for(victim.num_computed)
        cpu_blocks = self.cpu.take(written) if self.cpu and self.swaps(victim, written) else None
        if cpu_blocks:
            mode, lost = "swap", 0
            victim.status, victim.cpu_block_table = Status.SWAPPED, cpu_blocks
            plan.swap_out.append(Swap(victim, victim.block_table[:written], cpu_blocks))
        else:
            mode, lost, written = "recompute", victim.num_computed, 0
            self.forget(victim)
        self.tell_blocks("free", victim, victim.block_table)
        self.allocator.release(victim)
        insort(self.waiting, victim, key=RANK)
        victim.num_preemptions += cause != "turn"
        plan.preempted[victim] = Preemption(victim.request_id, mode, cause, lost, written, why)

    def swaps(self, victim: Request, blocks: int) -> bool:
        """Whether to move its keys and values, if the CPU has room, and not to compute them again."""
        if self.giving_way is None:
            return True
        again = self.giving_way.recompute_s(victim.num_computed, len(self.running), self.max_num_batched_tokens)
        return self.giving_way.swap_s(blocks) < again

    def forget(self, request: Request) -> None:
        """All keys and values of the request are gone; its tokens stay, and are computed again."""
        request.status = Status.PREEMPTED
        request.recomputed = max(request.recomputed, request.num_computed)
        request.num_computed = 0

    # -- what the others share, and swapping adds to ------------------------------------------------------------------

    def rank(self, request: Request, time: float) -> tuple[float, float, int]:
        """Linear ageing never changes an order, so nothing is sorted again while requests wait."""
        importance = float(request.priority if self.by_priority else 0)
        if self.aging_s:
            importance += time / self.aging_s
        return importance, time, next(self.count)

    def admit(self, plan: Plan) -> Request:
        request = super().admit(plan)
        request.turn_began = request.num_tokens
        if cpu_blocks := request.cpu_block_table:
            plan.swap_in.append(Swap(request, cpu_blocks, request.block_table[: len(cpu_blocks)]))
        return request

    def commit(self, plan: Plan, sampled: Mapping[Request, int | None]) -> StepRecord:
        for swap in plan.swap_in:  # not before: a copy out of the same step would have overwritten what came in
            self.give_cpu_blocks_back(swap.request)
        return super().commit(plan, sampled)

    def fail(self, plan: Plan, error: BaseException) -> None:
        for swap in plan.swap_out:  # nobody knows whether the copy was made
            victim = swap.request
            if victim.status is Status.SWAPPED:  # else it was aborted while the model ran
                told = plan.preempted[victim]
                plan.preempted[victim] = told._replace(mode="recompute", tokens=victim.num_computed, blocks=0)
                self.give_cpu_blocks_back(victim)
                self.forget(victim)
        super().fail(plan, error)

    def end(self, request: Request, reason: FinishReason, record: StepRecord | None = None) -> None:
        self.give_cpu_blocks_back(request)
        super().end(request, reason, record)

    def give_cpu_blocks_back(self, request: Request) -> None:
        if request.cpu_block_table:
            assert self.cpu is not None
            self.cpu.give_back(request.cpu_block_table)
            request.cpu_block_table = []
