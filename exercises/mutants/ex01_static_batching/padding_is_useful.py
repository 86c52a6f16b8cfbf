"""padding is not useful, and you counted it as if it were

Fails: test_the_first_step_reads_a_rectangle_of_prompts, test_nobody_joins_before_all_have_left,
    test_a_batch_may_be_smaller, test_every_row_of_the_engine_is_counted
"""

solution = static_loop


def static_loop(requests, max_num_seqs):
    return [(useful + padded, padded, finished) for useful, padded, finished in solution(requests, max_num_seqs)]
