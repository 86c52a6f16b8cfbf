"""a place that nobody took costs no rows

Fails: test_a_batch_may_be_smaller
"""


def static_loop(requests, max_num_seqs):
    steps = []
    for first in range(0, len(requests), max_num_seqs):
        batch = requests[first : first + max_num_seqs]
        prompts, outputs = zip(*batch, strict=True)
        steps.append((sum(prompts), max(prompts) * max_num_seqs - sum(prompts), 0))
        for have in range(1, max(outputs)):
            useful = sum(output > have for output in outputs)
            steps.append((useful, 0, max_num_seqs - useful))
    return steps
