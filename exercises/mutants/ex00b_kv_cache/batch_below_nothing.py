"""a batch cannot be negative

Fails: test_weights_that_do_not_fit
"""


def largest_batch(memory, weights, bytes_per_token, context):
    return (memory - weights) // (bytes_per_token * context)
