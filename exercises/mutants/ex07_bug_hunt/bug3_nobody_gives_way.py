"""there is room for all, so nobody gives way

Fails: test_workload_3_exposes_the_bug
"""


def workload_for_bug_3():
    return [(0, 4, 4), (0, 4, 4), (1, 4, 4)]
