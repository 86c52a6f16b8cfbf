"""no engine can serve a request that does not fit in the pool

Fails: test_workload_3_is_small_and_valid, test_workload_3_exposes_the_bug
"""


def workload_for_bug_3():
    return [(0, 15, 12), (1, 11, 40)]
