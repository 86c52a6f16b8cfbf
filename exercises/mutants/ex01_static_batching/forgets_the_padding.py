"""you counted only the prompts' own tokens: the model computes the whole rectangle

Fails: test_the_first_step_reads_a_rectangle_of_prompts, test_nobody_joins_before_all_have_left,
    test_a_batch_may_be_smaller, test_every_row_of_the_engine_is_counted
"""

solution = static_loop


def static_loop(requests, max_num_seqs):
    return [(useful, 0, finished) for useful, _, finished in solution(requests, max_num_seqs)]
