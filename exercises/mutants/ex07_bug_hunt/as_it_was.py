"""a request that does not fit has left the queue already, and joins nobody: it is lost

Fails: test_nobody_is_lost, test_who_fits_joins, test_the_recorded_workload_is_served
"""


def repaired_step(waiting, running, budget, max_num_seqs):
    work = {}
    for request in running:
        work[request] = 1
        budget -= 1
    while waiting and len(running) < max_num_seqs:
        request = waiting.pop(0)
        if request.gap > budget:
            break
        work[request] = request.gap
        budget -= request.gap
        running.append(request)
    return work
