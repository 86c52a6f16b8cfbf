"""Solutions to exercise 7."""

from __future__ import annotations

from minibatcher import Request


def broken_step(waiting: list[Request], running: list[Request], budget: int, max_num_seqs: int) -> dict[Request, int]:
    raise NotImplementedError("given")


def repaired_step(waiting: list[Request], running: list[Request], budget: int, max_num_seqs: int) -> dict[Request, int]:
    work = {}
    for request in running:
        work[request] = 1
        budget -= 1
    while waiting and len(running) < max_num_seqs and waiting[0].gap <= budget:
        request = waiting.pop(0)  # only now that it is sure to join
        work[request] = request.gap
        budget -= request.gap
        running.append(request)
    return work


def workload_for_bug_2() -> list[tuple[float, int, int]]:
    return [(0, 4, 2)]  # a prompt that fills its blocks: the first decode has no place


def workload_for_bug_3() -> list[tuple[float, int, int]]:
    return [(0, 15, 12), (1, 11, 12)]  # the second one gives way in the middle of its answer, and comes back
