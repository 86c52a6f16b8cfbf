"""the streams' own tokens are computed in the same step

Fails: test_the_longest_step_is_the_gap, test_the_first_token_waits_for_all_steps, test_one_step_for_the_whole_prompt,
    test_prefill_first, test_the_gap_in_the_engine
"""

solution = stall


def stall(chunks, streams, base_ms, token_ms, mixed):
    return solution(chunks, 0, base_ms, token_ms, mixed)
