"""your positions begin at 0 for each request, whatever it has computed

Fails: test_a_token_stands_at_its_own_position
"""

solution = flatten


def flatten(work):
    input_ids, _, cu_seqlens, last_rows = solution(work)
    return input_ids, [p for n in work.values() for p in range(n)], cu_seqlens, last_rows
