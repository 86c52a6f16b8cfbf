"""every step has its base: that is what chunking costs

Fails: test_the_first_token_waits_for_all_steps, test_prefill_first, test_the_first_token_of_prefill_first,
    test_the_gap_in_the_engine
"""

solution = stall


def stall(chunks, streams, base_ms, token_ms, mixed):
    gap, first = solution(chunks, streams, base_ms, token_ms, mixed)
    once = (len(chunks) - 1) * base_ms
    return gap if mixed else gap - once, first - once
