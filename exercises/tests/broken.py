"""The engines of exercise 7: a right one, and two of its kind with a bug each. (The third is in the exercise's file.)

They take blocks on demand: 8 blocks of 4 tokens, 3 lanes. If a decode needs a block and none is free, the last of those
that run gives way, waits at the front of the queue, and is computed again later. Prompts are read in one step.

    python exercises/tests/broken.py      records the traces anew
"""

from __future__ import annotations

import heapq
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from minibatcher import Request, Trace
from minibatcher.grading.toys import answers, engine, request
from minibatcher.memory.blocks import BlockAllocator
from minibatcher.plan import Plan
from minibatcher.request import Status
from minibatcher.schedulers.iteration import IterationScheduler
from minibatcher.trace import Preemption

LANES, NUM_BLOCKS, BLOCK_SIZE = 3, 8, 4
TRACES = Path(__file__).parent.parent / "traces"


class Right(IterationScheduler):
    def schedule(self) -> Plan:
        plan = Plan()
        for one in list(self.running):
            if one.status is Status.RUNNING and self.grow(plan, one):
                plan.add(one, self.tokens_to_compute(one))
        while self.waiting and self.free_lanes and not plan.preempted:
            head = self.waiting[0]
            if why := self.allocator.admit(head, head.num_tokens):
                self.leave_waiting(plan, why)
                break
            self.admit(plan)
            plan.add(head, self.tokens_to_compute(head))
        return plan

    def grow(self, plan: Plan, one: Request) -> bool:
        """Room for the request's next token. False when it gave way itself."""
        while self.needs_a_block(one):
            if blocks := self.allocator.take(1):
                one.block_table += blocks
            else:
                victim = self.running.pop()
                self.give_way(plan, victim)
                if victim is one:
                    return False
        return True

    def give_way(self, plan: Plan, victim: Request) -> None:
        why = "a decode needs a block, 0 free"
        plan.preempted[victim] = Preemption(victim.request_id, "recompute", "memory", victim.num_computed, 0, why)
        heapq.heappush(self.free_lanes, victim.lane)
        self.allocator.release(victim)
        victim.status = Status.PREEMPTED
        victim.recomputed, victim.num_computed = victim.num_computed, 0
        self.waiting.insert(0, victim)

    def needs_a_block(self, one: Request) -> bool:
        return len(one.block_table) * BLOCK_SIZE < one.num_tokens

    def tokens_to_compute(self, one: Request) -> int:
        return one.gap


class Bug2(Right):
    def needs_a_block(self, one: Request) -> bool:
        full = len(one.block_table) * BLOCK_SIZE == one.num_computed
        return full and one.num_computed > one.num_prompt_tokens  # a prompt has got its blocks when it joined


class Bug3(Right):
    def tokens_to_compute(self, one: Request) -> int:
        if not one.output_token_ids:  # it has said nothing yet, so this is its prompt
            return one.gap
        one.num_computed = one.num_tokens - 1  # a decode: all but its last token are there
        return 1


BUDGET = 8


class Steps(IterationScheduler):
    """Who runs is decided by a function `step(waiting, running, budget, max_num_seqs)`, as in task 7.1."""

    def __init__(self, step: Callable[..., dict[Request, int]], **shared: Any) -> None:
        super().__init__(**shared)
        self.step = step

    def schedule(self) -> Plan:
        plan, before = Plan(budget=BUDGET), list(self.running)
        work = self.step(self.waiting, self.running, BUDGET, self.max_num_seqs)
        for one in self.running:
            if one not in before:
                self.allocator.admit(one, self.allocator.reservation(one))
                one.status, one.lane = Status.RUNNING, heapq.heappop(self.free_lanes)
                plan.admitted.append(one)
        for one, n in work.items():
            plan.add(one, n)
        return plan


# -- run, and judge ---------------------------------------------------------------------------------------------------


def serve(scheduler: Callable[..., IterationScheduler], requests: list[Request], num_blocks: int = NUM_BLOCKS) -> Trace:
    """Raises ValueError when the engine refuses a request."""
    length = num_blocks * BLOCK_SIZE
    allocator = BlockAllocator(num_blocks, BLOCK_SIZE, length)
    served = engine(scheduler(allocator=allocator, max_num_seqs=LANES, max_model_len=length))
    served.add_all(requests)
    for _ in range(2000):
        if not served.has_work:
            break
        try:
            served.step()
        except NotImplementedError:
            raise
        except RuntimeError:  # there is work, and nothing was scheduled
            break
    return served.trace


def faults(requests: list[Request]) -> list[str]:
    """What an engine must do for each request, and has not done."""
    found = []
    for one in requests:
        if one.finish_reason is None:
            found.append(f"{one.request_id} never ends")
        elif one.finish_reason not in ("stop", "length"):
            found.append(f"{one.request_id} ends with {one.finish_reason}: {one.error}")
        elif one.output_token_ids != answers(one.prompt_token_ids, len(one.output_token_ids)):
            found.append(f"{one.request_id} gets other tokens than it would alone")
    return found


def make(workload: list[tuple[float, int, int]]) -> list[Request]:
    """Requests a, b, c ... of (arrival, prompt tokens, output tokens)."""
    return [
        request("abcdefghijklmnop"[i], prompt, output, arrival) for i, (arrival, prompt, output) in enumerate(workload)
    ]


RECORDED = {
    1: [(0, 3, 5), (0, 4, 3), (1, 7, 2), (3, 2, 4), (5, 3, 2), (6, 2, 2)],
    2: [(0, 3, 6), (0, 6, 4), (0, 5, 9), (5, 7, 5), (8, 2, 4), (9, 8, 6), (10, 9, 3), (14, 1, 7)],
    3: [(0, 2, 3), (0, 3, 4), (1, 1, 2), (4, 9, 3), (5, 6, 9), (6, 7, 8), (8, 3, 9), (9, 2, 4)],
}


def main() -> None:
    spec = importlib.util.spec_from_file_location("ex07", Path(__file__).parent.parent / "ex07_bug_hunt.py")
    assert spec is not None and spec.loader is not None
    exercise = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exercise)
    TRACES.mkdir(exist_ok=True)
    for number, scheduler in ((1, partial(Steps, exercise.broken_step)), (2, Bug2), (3, Bug3)):
        requests = make(RECORDED[number])
        serve(scheduler, requests, num_blocks=30 if number == 1 else NUM_BLOCKS).save(
            TRACES / f"ex07_bug{number}.jsonl"
        )
        print(f"bug {number}: {'; '.join(faults(requests))}")


if __name__ == "__main__":
    main()
