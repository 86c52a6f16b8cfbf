"""you weighed by lse itself: it is the logarithm of the weight

Fails: test_two_parts_are_one_softmax, test_large_sums_do_not_overflow, test_an_empty_part_changes_nothing
"""

solution = merge


def merge(out_a, lse_a, out_b, lse_b):
    lse = solution(out_a, lse_a, out_b, lse_b)[1]
    a, b = lse_a.clamp(min=-1e3)[:, None], lse_b.clamp(min=-1e3)[:, None]
    return (a * out_a + b * out_b) / (a + b), lse
