"""the step that reads the prompts gives the first token already

Fails: test_the_first_step_reads_a_rectangle_of_prompts, test_the_first_step_gives_the_first_token,
    test_a_finished_row_is_computed_until_all_are_done, test_nobody_joins_before_all_have_left,
    test_a_batch_may_be_smaller, test_every_row_of_the_engine_is_counted
"""

solution = static_loop


def static_loop(requests, max_num_seqs):
    return solution([(prompt, output + 1) for prompt, output in requests], max_num_seqs)
