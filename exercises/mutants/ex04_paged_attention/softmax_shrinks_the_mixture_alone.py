"""you shrank the mixture, and not the sum

Fails: test_the_highest_score_may_come_late, test_large_scores_do_not_overflow
"""


def online_softmax(tiles, head_dim):
    highest, total, mixed = torch.tensor(-1e30), torch.zeros(()), torch.zeros(head_dim)
    for scores, values in tiles:
        new_highest = torch.maximum(highest, scores.max())
        weights = torch.exp(scores - new_highest)
        total = total + weights.sum()
        mixed = mixed * torch.exp(highest - new_highest) + weights @ values
        highest = new_highest
    return mixed / total if mixed.any() else mixed
