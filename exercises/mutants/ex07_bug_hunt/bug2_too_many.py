"""seven requests: six are allowed, and one is enough

Fails: test_workload_2_is_small_and_valid, test_workload_2_exposes_the_bug
"""


def workload_for_bug_2():
    return [(0, 4, 2)] * 7
