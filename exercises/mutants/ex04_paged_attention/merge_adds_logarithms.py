"""you added the two lse: the logarithm of a sum is no sum of logarithms

Fails: test_the_sum_goes_on, test_large_sums_do_not_overflow
"""

solution = merge


def merge(out_a, lse_a, out_b, lse_b):
    return solution(out_a, lse_a, out_b, lse_b)[0], torch.where(
        lse_a.isinf() | lse_b.isinf(), torch.maximum(lse_a, lse_b), lse_a + lse_b
    )
