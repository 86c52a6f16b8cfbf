"""you compared max_tokens with all tokens: it is for the output alone

Fails: test_max_tokens_finish, test_every_answer_in_the_engine
"""


def commit(work, sampled, eos):
    finished = []
    for request, n in work.items():
        request.num_computed += n
        if request in sampled:
            request.token_ids.append(sampled[request])
            if sampled[request] == eos:
                request.finish_reason = FinishReason.STOP
            elif len(request.token_ids) >= request.params.max_tokens:
                request.finish_reason = FinishReason.LENGTH
            if request.finish_reason:
                finished.append(request)
    return finished
