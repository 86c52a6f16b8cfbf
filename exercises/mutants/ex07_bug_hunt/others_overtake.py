"""you let those behind it overtake

Fails: test_nobody_is_lost, test_the_budget_still_holds
"""


def repaired_step(waiting, running, budget, max_num_seqs):
    work = dict.fromkeys(running, 1)
    budget -= len(running)
    for request in list(waiting):
        if len(running) < max_num_seqs and request.gap <= budget:
            waiting.remove(request)
            work[request] = request.gap
            budget -= request.gap
            running.append(request)
    return work
