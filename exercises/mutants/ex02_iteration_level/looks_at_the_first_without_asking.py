"""an empty queue has no first one

Fails: test_nobody_waits, test_the_six_requests_in_the_engine
"""

solution = who_joins


def who_joins(waiting, free_lanes, free_tokens):
    return [0, *solution(waiting, free_lanes, free_tokens)[1:]] if waiting[0] <= free_tokens and free_lanes else []
