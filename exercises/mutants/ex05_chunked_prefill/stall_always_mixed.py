"""you served the streams in the prompt's steps: with prefill first they wait

Fails: test_prefill_first, test_the_first_token_of_prefill_first
"""

solution = stall


def stall(chunks, streams, base_ms, token_ms, mixed):
    return solution(chunks, streams, base_ms, token_ms, True)
