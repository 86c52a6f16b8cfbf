"""you took out the look at the budget: then a step computes too much

Fails: test_nobody_is_lost, test_who_fits_joins, test_the_budget_still_holds
"""


def repaired_step(waiting, running, budget, max_num_seqs):
    work = dict.fromkeys(running, 1)
    while waiting and len(running) < max_num_seqs:
        request = waiting.pop(0)
        work[request] = request.gap
        running.append(request)
    return work
