"""you took those who join out of the engine's own list

Fails: test_the_queue_stays_as_it_was
"""

solution = who_joins


def who_joins(waiting, free_lanes, free_tokens):
    joining = solution(waiting, free_lanes, free_tokens)
    del waiting[: len(joining)]
    return joining
