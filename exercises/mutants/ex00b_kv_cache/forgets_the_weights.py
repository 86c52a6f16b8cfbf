"""you gave the cache the whole GPU; the weights are there already

Fails: test_the_weights_stay_on_the_gpu, test_half_a_request_does_not_fit, test_weights_that_do_not_fit
"""


def largest_batch(memory, weights, bytes_per_token, context):
    return memory // (bytes_per_token * context)
