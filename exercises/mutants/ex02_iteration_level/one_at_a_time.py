"""you let one join a step: all that fit join

Fails: test_the_pool_is_spent_as_they_join, test_each_takes_a_lane, test_the_six_requests_in_the_engine
"""

solution = who_joins


def who_joins(waiting, free_lanes, free_tokens):
    return solution(waiting, free_lanes, free_tokens)[:1]
