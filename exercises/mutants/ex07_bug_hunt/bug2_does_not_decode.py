"""the prompt fills its blocks, but the request ends before it needs another one

Fails: test_workload_2_exposes_the_bug
"""


def workload_for_bug_2():
    return [(0, 4, 1), (1, 8, 1)]
