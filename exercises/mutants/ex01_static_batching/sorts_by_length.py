"""you sorted the requests: they are served in order of arrival

Fails: test_a_batch_may_be_smaller, test_every_row_of_the_engine_is_counted
"""

solution = static_loop


def static_loop(requests, max_num_seqs):
    return solution(sorted(requests), max_num_seqs)
