"""you looked at the pool alone: each takes a lane too

Fails: test_each_takes_a_lane
"""

solution = who_joins


def who_joins(waiting, free_lanes, free_tokens):
    return solution(waiting, len(waiting), free_tokens)
