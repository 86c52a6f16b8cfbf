"""you went on behind the end token

Fails: test_an_end_token_stops, test_an_end_token_as_the_last_is_a_stop
"""

solution = commit


def commit(work, sampled, eos):
    return solution(work, sampled, -1)
