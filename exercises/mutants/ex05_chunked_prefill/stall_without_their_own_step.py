"""after the prompt the streams need a step of their own

Fails: test_prefill_first
"""

solution = stall


def stall(chunks, streams, base_ms, token_ms, mixed):
    gap, first = solution(chunks, streams, base_ms, token_ms, mixed)
    return gap if mixed else first, first
