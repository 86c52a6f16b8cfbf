"""you let the next request join as soon as one is done: that is iteration-level scheduling

Fails: test_a_finished_row_is_computed_until_all_are_done, test_nobody_joins_before_all_have_left,
    test_a_batch_may_be_smaller, test_every_row_of_the_engine_is_counted
"""


def static_loop(requests, max_num_seqs):
    waiting, running, steps = list(requests), [], []
    while waiting or running:
        joining, waiting = waiting[: max_num_seqs - len(running)], waiting[max_num_seqs - len(running) :]
        prompts = [prompt for prompt, _ in joining]
        padded = max(prompts, default=0) * len(prompts) - sum(prompts)
        steps.append((len(running) + sum(prompts), padded, 0))
        running = [left - 1 for left in running] + [output - 1 for _, output in joining]
        running = [left for left in running if left]
    return steps
