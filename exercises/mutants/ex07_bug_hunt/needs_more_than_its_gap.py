"""exactly enough is enough

Fails: test_who_fits_joins
"""


def repaired_step(waiting, running, budget, max_num_seqs):
    work = dict.fromkeys(running, 1)
    budget -= len(running)
    while waiting and len(running) < max_num_seqs and waiting[0].gap < budget:
        request = waiting.pop(0)
        work[request] = request.gap
        budget -= request.gap
        running.append(request)
    return work
