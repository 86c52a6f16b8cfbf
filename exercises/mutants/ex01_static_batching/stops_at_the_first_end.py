"""you ended the batch with its first request: it goes on until the last is done

Fails: test_a_finished_row_is_computed_until_all_are_done, test_nobody_joins_before_all_have_left,
    test_a_batch_may_be_smaller, test_every_row_of_the_engine_is_counted
"""


def static_loop(requests, max_num_seqs):
    steps = []
    for first in range(0, len(requests), max_num_seqs):
        batch = requests[first : first + max_num_seqs]
        prompts, outputs = zip(*batch, strict=True)
        steps.append((sum(prompts), max(prompts) * len(batch) - sum(prompts), 0))
        steps += [(len(batch), 0, 0)] * (min(outputs) - 1)
    return steps
