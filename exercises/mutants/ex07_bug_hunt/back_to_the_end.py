"""you put it back at the end of the queue: it loses its place

Fails: test_nobody_is_lost
"""


def repaired_step(waiting, running, budget, max_num_seqs):
    work = dict.fromkeys(running, 1)
    budget -= len(running)
    while waiting and len(running) < max_num_seqs:
        request = waiting.pop(0)
        if request.gap > budget:
            waiting.append(request)
            break
        work[request] = request.gap
        budget -= request.gap
        running.append(request)
    return work
