"""Exercise 7 in another style: put it back; and other workloads."""

from __future__ import annotations


def repaired_step(waiting, running, budget, max_num_seqs):
    work = dict.fromkeys(running, 1)
    budget -= len(running)
    while waiting and len(running) < max_num_seqs:
        request = waiting.pop(0)
        if request.gap > budget:
            waiting.insert(0, request)
            break
        work[request] = request.gap
        budget -= request.gap
        running.append(request)
    return work


def workload_for_bug_2():
    return [(0, 3, 3), (1, 8, 5), (1.5, 12, 3)]


def workload_for_bug_3():
    return [(0, 5, 20), (0, 6, 20), (0, 7, 20), (3, 1, 1)]
