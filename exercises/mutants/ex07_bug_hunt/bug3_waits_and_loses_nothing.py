"""the pool is full, and so the second one waits: it has computed nothing that could be lost

Fails: test_workload_3_exposes_the_bug
"""


def workload_for_bug_3():
    return [(0, 28, 4), (0, 20, 8)]
