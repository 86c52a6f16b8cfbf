"""you kept the tiles: their memory is used again

Fails: test_a_tile_is_not_kept
"""


def online_softmax(tiles, head_dim):
    tiles = list(tiles)
    if not tiles:
        return torch.zeros(head_dim)
    return torch.cat([s for s, _ in tiles]).softmax(0).nan_to_num(0) @ torch.cat([v for _, v in tiles])
