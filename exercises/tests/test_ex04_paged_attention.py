"""Checks of exercise 4. The expected values are computed in float64, in one go."""

import torch

from minibatcher.grading import exercise, expect, part


def numbers(*shape, seed=0, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def cut(scores, values, *sizes):
    return list(zip(scores.split(sizes), values.split(sizes), strict=True))


def softmax(scores, values):
    return (scores.double().softmax(0) @ values.double()).float()


@exercise("4.1", points=3, minutes=35)
class TestOnlineSoftmax:
    """The online softmax over tiles"""

    def test_tiles_give_what_the_whole_gives(self, ex):
        """the answer is that of one softmax over all scores, however they are cut"""
        scores, values = numbers(12), numbers(12, 3, seed=1)
        for sizes in ([12], [4, 4, 4], [1, 9, 2]):
            expect(ex.online_softmax(cut(scores, values, *sizes), 3), softmax(scores, values))

    def test_the_highest_score_may_come_late(self, ex):
        """what was summed before a higher score came is shrunk: the sum and the mixture"""
        scores, values = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), numbers(6, 2)
        expect(ex.online_softmax(cut(scores, values, 2, 2, 2), 2), softmax(scores, values))

    def test_the_highest_score_may_come_early(self, ex):
        """a tile of lower scores leaves the highest as it is"""
        scores, values = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.0]), numbers(6, 2)
        expect(ex.online_softmax(cut(scores, values, 2, 2, 2), 2), softmax(scores, values))

    def test_large_scores_do_not_overflow(self, ex):
        """exp(1000) is infinite: only differences to the highest score are exponentiated"""
        scores, values = torch.tensor([1000.0, 999.0, 1001.0, -1000.0]), numbers(4, 2)
        expect(ex.online_softmax(cut(scores, values, 2, 2), 2), softmax(scores, values))

    def test_a_tile_may_be_hidden(self, ex):
        """a tile whose scores are all -inf changes nothing, even when it comes first"""
        scores, values = torch.tensor([-torch.inf, -torch.inf, 1.0, 2.0, -torch.inf, -torch.inf]), numbers(6, 2)
        expect(ex.online_softmax(cut(scores, values, 2, 2, 2), 2), softmax(scores[2:4], values[2:4]))

    def test_who_sees_nothing_gets_zeros(self, ex):
        """if no key may be seen the answer is 0, not 0 / 0"""
        hidden = torch.full((2,), -torch.inf)
        for tiles in ([], [(hidden, numbers(2, 2))]):
            expect(ex.online_softmax(tiles, 2), [0.0, 0.0])

    def test_a_tile_is_not_kept(self, ex):
        """a tile's memory is used for the next one: only the three running values are kept"""
        scores, values = numbers(6), numbers(6, 2, seed=1)

        def one_place():
            place = torch.empty(2), torch.empty(2, 2)
            for tile in cut(scores, values, 2, 2, 2):
                for target, source in zip(place, tile, strict=True):
                    target.copy_(source)
                yield place

        expect(ex.online_softmax(one_place(), 2), softmax(scores, values))


class Pool:
    """A request's keys and values, scattered over a pool whose other slots hold NaN."""

    def __init__(self, context, block_size, num_kv_heads, head_dim, block_table, num_heads=None):
        self.query = numbers(num_heads or num_kv_heads, head_dim)
        self.keys = numbers(context, num_kv_heads, head_dim, seed=1)
        self.values = numbers(context, num_kv_heads, head_dim, seed=2)
        shape = (max(block_table) + 2, block_size, num_kv_heads, head_dim)
        self.key_cache, self.value_cache = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
        for j in range(context):
            place = block_table[j // block_size], j % block_size
            self.key_cache[place], self.value_cache[place] = self.keys[j], self.values[j]
        self.block_table, self.context = list(block_table), context

    def answer(self, ex, scale=0.5):
        return ex.paged_decode(self.query, self.key_cache, self.value_cache, self.block_table, self.context, scale)

    def expected(self, scale=0.5):
        group = len(self.query) // self.keys.shape[1]
        rows = []
        for head, q in enumerate(self.query.double()):
            keys, values = self.keys[:, head // group].double(), self.values[:, head // group].double()
            rows.append((keys @ q * scale).softmax(0) @ values)
        return torch.stack(rows)


@exercise("4.2", points=3, minutes=30)
class TestPagedDecode:
    """Decode attention through a block table"""

    def test_blocks_in_the_tables_order(self, ex):
        """the request's tokens lie where its block table says, and nowhere else"""
        pool = Pool(context=8, block_size=4, num_kv_heads=2, head_dim=3, block_table=[3, 1])
        pool.key_cache[[0, 2]] = pool.value_cache[[0, 2]] = 9.0
        expect(pool.answer(ex), pool.expected())

    def test_the_context_ends_inside_a_block(self, ex):
        """what is behind the context was never written, and is not read: here it is NaN"""
        for context in (1, 5, 7):
            pool = Pool(context, 4, 1, 2, [2, 0, 3])
            expect(pool.answer(ex), pool.expected())

    def test_every_token_of_the_context_counts(self, ex):
        """the last token of the context, which was just written, is one of those that are seen"""
        pool = Pool(context=6, block_size=4, num_kv_heads=1, head_dim=2, block_table=[1, 0])
        pool.query[:] = 0
        expect(pool.answer(ex), pool.values.mean(dim=0), "for a query that fits all keys alike: the mean of all values")

    def test_scores_are_scaled(self, ex):
        """scores are multiplied by `scale` before the softmax"""
        pool = Pool(context=5, block_size=4, num_kv_heads=1, head_dim=4, block_table=[0, 1])
        for scale in (0.1, 2.0):
            expect(pool.answer(ex, scale), pool.expected(scale))

    def test_query_heads_in_groups(self, ex):
        """neighbouring query heads share a key/value head"""
        pool = Pool(context=6, block_size=2, num_kv_heads=2, head_dim=3, block_table=[2, 0, 1], num_heads=6)
        expect(pool.answer(ex), pool.expected())

    def test_a_table_may_be_longer(self, ex):
        """blocks that are reserved, and not written yet, stand at the end of the table"""
        pool = Pool(context=3, block_size=2, num_kv_heads=1, head_dim=2, block_table=[1, 3, 0, 2])
        expect(pool.answer(ex), pool.expected())


def attention(scores, values):
    """out and lse, in float64."""
    return torch.einsum("hc,chd->hd", scores.softmax(-1), values), scores.logsumexp(-1)


@exercise("4.3", points=2, minutes=25)
class TestMerge:
    """Merge two partial results"""

    def parts(self, shift=0.0):
        scores = numbers(2, 9, seed=3).double() + shift
        values = numbers(9, 2, 3, seed=4).double()
        return attention(scores[:, :4], values[:4]), attention(scores[:, 4:], values[4:]), attention(scores, values)

    def test_two_parts_are_one_softmax(self, ex):
        """out is that of attention over both parts at once"""
        a, b, whole = self.parts()
        expect(part(ex.merge(*a, *b), 0, of=2), whole[0])

    def test_the_sum_goes_on(self, ex):
        """lse is that of both parts at once, so that a third part can be merged"""
        a, b, whole = self.parts()
        expect(part(ex.merge(*a, *b), 1, of=2), whole[1])

    def test_large_sums_do_not_overflow(self, ex):
        """exp(1000) is infinite and exp(-1000) is 0: only differences are exponentiated"""
        for shift in (1000.0, -1000.0):
            a, b, whole = self.parts(shift)
            expect(ex.merge(*a, *b), whole)

    def test_an_empty_part_changes_nothing(self, ex):
        """a part without a key has lse = -inf, and no weight"""
        a, _, _ = self.parts()
        empty = torch.zeros(2, 3).double(), torch.full((2,), -torch.inf).double()
        for pair in ((a, empty), (empty, a)):
            expect(ex.merge(*pair[0], *pair[1]), a)

    def test_two_empty_parts_are_empty(self, ex):
        """of two parts without a key the answer is 0, and lse is -inf"""
        empty = torch.zeros(1, 2), torch.full((1,), -torch.inf)
        expect(ex.merge(*empty, *empty), [[[0.0, 0.0]], [-torch.inf]])


class Decodes:
    """An attention backend: the package's for chunks of prompts, the learner's for decodes."""

    def __init__(self, own, pool, paged_decode):
        self.own, self.pool, self.paged_decode, self.calls = own, pool, paged_decode, 0
        self.begin = own.begin

    def prepare(self, batch):
        attend = self.own.prepare(batch)

        def attend_mine(layer, query, key, value, scale, window, softcap):
            out = attend(layer, query, key, value, scale, window, softcap)
            keys, values = self.pool.keys[layer], self.pool.values[layer]
            for row, (one, _) in enumerate(batch.work[: batch.num_singles]):
                context, self.calls = one.num_computed + 1, self.calls + 1
                out[row] = self.paged_decode(query[row], keys, values, one.block_table, context, scale)
            return out

        return attend_mine


def picture(ex):
    """The learner's paged decode inside a real model: every layer of every decode."""
    from minibatcher import Request, SamplingParams, build_engine
    from minibatcher.views.text import render

    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    outputs = []
    for mine in (False, True):
        engine = build_engine("paged", "tiny", max_num_seqs=3, max_model_len=64)
        if mine:
            runner = engine.runner
            runner.attention = Decodes(runner.attention, runner.pool, ex.paged_decode)
        requests = [Request(list(range(5 + 9 * n, 9 + 15 * n)), params) for n in range(4)]
        trace = engine.run(requests)
        outputs.append([one.output_token_ids for one in requests])
    verdict = "the same as the package's" if outputs[0] == outputs[1] else "NOT those of the package"
    calls = runner.attention.calls
    return f"a model with random weights, with your attention in {calls} calls; the tokens are {verdict}:\n\n" + render(
        trace
    )
