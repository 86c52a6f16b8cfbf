"""the new request has its token when its prompt is read: it does not wait for the streams

Fails: test_the_first_token_of_prefill_first
"""

solution = stall


def stall(chunks, streams, base_ms, token_ms, mixed):
    gap, first = solution(chunks, streams, base_ms, token_ms, mixed)
    return gap, first if mixed else gap
