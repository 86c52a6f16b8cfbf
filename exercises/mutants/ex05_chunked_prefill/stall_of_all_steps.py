"""with chunks a stream gets a token in each step: its gap is one step, not all of them

Fails: test_the_longest_step_is_the_gap, test_the_gap_in_the_engine
"""

solution = stall


def stall(chunks, streams, base_ms, token_ms, mixed):
    gap, first = solution(chunks, streams, base_ms, token_ms, mixed)
    return first if mixed else gap, first
