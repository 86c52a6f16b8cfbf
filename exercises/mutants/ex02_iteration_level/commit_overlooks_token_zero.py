"""you took token 0 for no token: ask whether the request is in `sampled`

Fails: test_token_zero_is_a_token
"""

solution = commit


def commit(work, sampled, eos):
    return solution(work, {request: token for request, token in sampled.items() if token}, eos)
