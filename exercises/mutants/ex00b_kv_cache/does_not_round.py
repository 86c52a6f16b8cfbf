"""you did not round: nobody serves 2.99 requests

Fails: test_half_a_request_does_not_fit
"""


def largest_batch(memory, weights, bytes_per_token, context):
    return max(0, (memory - weights) / (bytes_per_token * context))
