"""what was summed before a higher score came is too large now: shrink it

Fails: test_the_highest_score_may_come_late, test_large_scores_do_not_overflow
"""


def online_softmax(tiles, head_dim):
    highest, total, mixed = torch.tensor(-1e30), torch.zeros(()), torch.zeros(head_dim)
    for scores, values in tiles:
        highest = torch.maximum(highest, scores.max())
        weights = torch.exp(scores - highest)
        total, mixed = total + weights.sum(), mixed + weights @ values
    return mixed / total if total > 0 else mixed
