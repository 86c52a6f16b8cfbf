"""you counted the new token as computed: the model has not read it yet

Fails: test_a_new_token_is_counted_and_not_computed, test_every_answer_in_the_engine
"""

solution = commit


def commit(work, sampled, eos):
    finished = solution(work, sampled, eos)
    for request in sampled:
        request.num_computed += 1
    return finished
