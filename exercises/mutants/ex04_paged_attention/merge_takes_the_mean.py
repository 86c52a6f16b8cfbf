"""you took the mean: a part with the greater sum weighs more

Fails: test_two_parts_are_one_softmax, test_large_sums_do_not_overflow
"""

solution = merge


def merge(out_a, lse_a, out_b, lse_b):
    lse = solution(out_a, lse_a, out_b, lse_b)[1]
    empty_a, empty_b = lse_a.isinf()[:, None], lse_b.isinf()[:, None]
    return torch.where(empty_a, out_b, torch.where(empty_b, out_a, (out_a + out_b) / 2)), lse
