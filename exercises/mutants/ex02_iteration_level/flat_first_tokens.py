"""you took a request's first n tokens: take those that are not computed yet

Fails: test_tokens_follow_one_another
"""

solution = flatten


def flatten(work):
    ids = [token for request, n in work.items() for token in request.token_ids[:n]]
    return ids, *solution(work)[1:]
