"""you rounded up

Fails: test_half_a_request_does_not_fit
"""


def largest_batch(memory, weights, bytes_per_token, context):
    return max(0, -((weights - memory) // (bytes_per_token * context)))
