"""who joins leaves the queue

Fails: test_who_fits_joins, test_the_budget_still_holds, test_the_recorded_workload_is_served
"""


def repaired_step(waiting, running, budget, max_num_seqs):
    work = dict.fromkeys(running, 1)
    budget -= len(running)
    for request in waiting:
        if len(running) == max_num_seqs or request.gap > budget:
            break
        work[request] = request.gap
        budget -= request.gap
        running.append(request)
    return work
