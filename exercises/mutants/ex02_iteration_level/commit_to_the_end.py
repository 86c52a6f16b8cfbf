"""you took every gap for closed: a step may compute a part of it

Fails: test_computed_tokens_are_counted, test_half_a_prompt_has_no_token_yet
"""


def commit(work, sampled, eos):
    finished = []
    for request in work:
        request.num_computed = request.num_tokens
        if request in sampled:
            request.token_ids.append(sampled[request])
            if sampled[request] == eos or len(request.output_token_ids) == request.params.max_tokens:
                request.finish_reason = FinishReason.STOP if sampled[request] == eos else FinishReason.LENGTH
                finished.append(request)
    return finished
