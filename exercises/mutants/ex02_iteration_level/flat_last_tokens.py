"""you took a request's last n tokens: of a part of a gap they are not the next ones

Fails: test_tokens_follow_one_another
"""

solution = flatten


def flatten(work):
    ids = [token for request, n in work.items() for token in request.token_ids[-n:]]
    return ids, *solution(work)[1:]
