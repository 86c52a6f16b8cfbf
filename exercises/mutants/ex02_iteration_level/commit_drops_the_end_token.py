"""you dropped the end token: it stays in token_ids

Fails: test_an_end_token_stops
"""

solution = commit


def commit(work, sampled, eos):
    finished = solution(work, sampled, eos)
    for request in finished:
        if request.finish_reason == FinishReason.STOP:
            request.token_ids.pop()
    return finished
