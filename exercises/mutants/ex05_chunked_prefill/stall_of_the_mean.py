"""you took the mean of the steps: the mean does not show the stall

Fails: test_the_longest_step_is_the_gap
"""

solution = stall


def stall(chunks, streams, base_ms, token_ms, mixed):
    gap, first = solution(chunks, streams, base_ms, token_ms, mixed)
    return first / len(chunks) if mixed else gap, first
