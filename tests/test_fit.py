"""How many requests fit in one pool: the numbers by hand, and what paging gains over ranges."""

from __future__ import annotations

from minibatcher.measure.fit import Length, how_many_fit


def test_a_workload_of_equal_requests_by_hand():
    """A pool of 64 blocks of 16 tokens. Prompt 20, max_tokens 64, real output 30, max_model_len 256.

    max_model_len   256 tokens = 16 blocks     64 // 16 = 4
    power of two    20 + 32 = 52: 4 blocks     16
    max_tokens      20 + 64 = 84: 6 blocks     10 (and 4 blocks stay free)
    oracle          20 + 30 = 50: 4 blocks     16
    blocks          84: 6 blocks               10, as many as ranges: equal requests leave no holes
    on demand       the prompt's 2 blocks      31; 62 are taken then, and 1 stays free as the watermark
    """
    fits = how_many_fit([Length(20, 64, 30)] * 40)
    first = {way: fit.first for way, fit in fits.items()}
    assert first == {
        "ranges, max_model_len": 4,
        "ranges, power of two": 16,
        "ranges, max_tokens": 10,
        "ranges, oracle": 16,
        "blocks, max_tokens": 10,
        "blocks, on demand": 31,
    }
    # 40 requests of 30 steps each (the prompt's step gives the first token): waves of 4, 16, 10, 16, 10.
    steps = {way: fit.steps for way, fit in fits.items()}
    assert [steps[way] for way in list(steps)[:5]] == [300, 90, 120, 90, 120]
    assert steps["blocks, on demand"] < 90 and fits["blocks, on demand"].preemptions > 0


def test_what_blocks_gain_over_ranges_comes_from_holes():
    """A pool of 12 blocks of 4.

    a (4 blocks) b (2) c (4) d (2) fill it; a and c end after 2 steps and leave two holes of 4. e needs 6 blocks in
    a row, so it waits until b ends after 6 steps, which makes one hole of all three. In blocks it joins in step 3.
    """
    lengths = [Length(14, 2, 2), Length(2, 6, 6), Length(14, 2, 2), Length(1, 7, 7), Length(20, 4, 4)]
    fits = how_many_fit(lengths, num_blocks=12, block_size=4, max_model_len=24)
    assert fits["ranges, max_tokens"].first == fits["blocks, max_tokens"].first == 4
    assert fits["ranges, max_tokens"].steps == 6 + 4
    assert fits["blocks, max_tokens"].steps == 7  # e runs in steps 3 to 6, beside b and d; d ends last, after 7
