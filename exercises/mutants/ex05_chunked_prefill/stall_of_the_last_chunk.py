"""the longest step counts, not the last one

Fails: test_the_longest_step_is_the_gap
"""

solution = stall


def stall(chunks, streams, base_ms, token_ms, mixed):
    gap, first = solution(chunks, streams, base_ms, token_ms, mixed)
    return base_ms + token_ms * (chunks[-1] + streams) if mixed else gap, first
