"""the prompt does not fill its last block, so the first decode has a place

Fails: test_workload_2_exposes_the_bug
"""


def workload_for_bug_2():
    return [(0, 5, 6), (0, 3, 9), (2, 7, 4)]
