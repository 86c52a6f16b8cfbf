"""you let finished requests leave the rectangle: static batching does not

Fails: test_a_finished_row_is_computed_until_all_are_done, test_nobody_joins_before_all_have_left,
    test_a_batch_may_be_smaller, test_every_row_of_the_engine_is_counted
"""

solution = static_loop


def static_loop(requests, max_num_seqs):
    return [(useful, padded, 0) for useful, padded, _ in solution(requests, max_num_seqs)]
