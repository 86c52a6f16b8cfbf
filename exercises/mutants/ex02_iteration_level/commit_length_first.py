"""you looked at the length first: an end token as the last one is a stop

Fails: test_an_end_token_as_the_last_is_a_stop
"""

solution = commit


def commit(work, sampled, eos):
    finished = solution(work, sampled, eos)
    for request in finished:
        if len(request.output_token_ids) == request.params.max_tokens:
            request.finish_reason = FinishReason.LENGTH
    return finished
