"""Checks of exercise 4's bonus. The kernels run in Triton's interpreter; the grader counts what they read."""

import contextlib

import torch

from minibatcher.grading import exercise, expect


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def reads_of(tensor):
    """How often elements of the tensor are read by kernels: a list that holds the number when the block is over."""
    from triton.runtime.interpreter import InterpreterBuilder

    begin, count = tensor.data_ptr(), [0]
    end, load = begin + tensor.numel() * tensor.element_size(), InterpreterBuilder.create_masked_load

    def counted(self, ptrs, mask, *args):
        inside = (ptrs.data >= begin) & (ptrs.data < end) & mask.data
        count[0] += int(inside.sum())
        return load(self, ptrs, mask, *args)

    InterpreterBuilder.create_masked_load = counted
    try:
        yield count
    finally:
        InterpreterBuilder.create_masked_load = load


class Pool:
    """A request's keys and values in a pool whose other slots hold NaN. The heads share them."""

    def __init__(self, context=11, block_size=4, dim=8, block_table=(3, 0, 4), heads=1):
        self.query = numbers(heads, dim)
        self.k, self.v = numbers(context, dim, seed=1), numbers(context, dim, seed=2)
        self.keys = torch.full((6, block_size, dim), torch.nan)
        self.values = torch.full((6, block_size, dim), torch.nan)
        for j in range(context):
            place = block_table[j // block_size], j % block_size
            self.keys[place], self.values[place] = self.k[j], self.v[j]
        self.block_table, self.context = torch.tensor(block_table, dtype=torch.int32), context

    def answer(self, function, scale=0.5):
        return function(self.query, self.keys, self.values, self.block_table, self.context, scale)

    def expected(self, scale=0.5):
        return (self.query.double() @ self.k.double().T * scale).softmax(-1) @ self.v.double()


@exercise("4.4", points=1, minutes=15, bonus=True, needs="triton")
class TestMaskedCopy:
    """A masked copy"""

    def test_what_is_copied(self, ex):
        """all n elements come over, whatever n is, and nothing from n on is written"""
        got, expected = [], []
        for n in (1, 16, 17, 40):
            x, out = numbers(48), torch.full((48,), 9.0)
            ex.copy(x, out, n)
            got.append(out)
            expected.append(torch.cat([x[:n], torch.full((48 - n,), 9.0)]))
        expect(got, expected)

    def test_what_is_read(self, ex):
        """each of the n elements is read once, and nothing behind them"""
        x, out = numbers(48), torch.zeros(48)
        with reads_of(x) as count:
            ex.copy(x, out, 37)
        expect(count[0], 37, "how many elements of x were read, for n = 37")


@exercise("4.5", points=1, minutes=20, bonus=True, needs="triton")
class TestGather:
    """A copy through a block table"""

    def test_the_table_leads_to_the_rows(self, ex):
        """row j of the outcome is token j of the request"""
        pool = Pool(context=12)
        expect(ex.gather(pool.keys, pool.block_table, 12), pool.k)

    def test_the_context_ends_inside_its_block(self, ex):
        """what is behind the context is neither read nor written"""
        pool = Pool(context=9)
        with reads_of(pool.keys) as count:
            got = ex.gather(pool.keys, pool.block_table, 9)
        expect([got, count[0]], [pool.k, 9 * 8], "the outcome, and how many numbers of the cache were read")


@exercise("4.6", points=2, minutes=20, bonus=True, needs="triton")
class TestScores:
    """The scores of one block"""

    def test_scores_of_whole_blocks(self, ex):
        """scale times the product of query and key, for each token in order"""
        pool = Pool(context=12)
        got = ex.scores(pool.query[0], pool.keys, pool.block_table, 12, 0.25)
        expect(got, pool.k @ pool.query[0] * 0.25)

    def test_behind_the_context(self, ex):
        """places behind the context get -inf, and their keys are not read"""
        pool = Pool(context=9)
        with reads_of(pool.keys) as count:
            got = ex.scores(pool.query[0], pool.keys, pool.block_table, 9, 1.0)
        expected = torch.cat([pool.k @ pool.query[0], torch.full((3,), -torch.inf)])
        expect([got, count[0]], [expected, 9 * 8], "the scores, and how many numbers of the cache were read")


@exercise("4.7", points=2, minutes=35, bonus=True, needs="triton")
class TestOnlineLoop:
    """The online softmax loop"""

    def test_attention_of_one_head(self, ex):
        """the answer is that of one softmax over the whole context"""
        pools = [Pool(context=context) for context in (1, 4, 8, 12)]
        expect([pool.answer(ex.decode) for pool in pools], [pool.expected() for pool in pools])

    def test_unwritten_slots_in_the_loop(self, ex):
        """behind the context there is NaN, in keys and in values, and 0 * NaN is NaN"""
        pools = [Pool(context=context) for context in (3, 6, 11)]
        expect([pool.answer(ex.decode) for pool in pools], [pool.expected() for pool in pools])

    def test_great_scores(self, ex):
        """exp(1000) is infinite: only differences to the highest score are exponentiated"""
        pool = Pool(context=11)
        expect(pool.answer(ex.decode, 300.0), pool.expected(300.0))

    def test_a_run_for_each_head(self, ex):
        """run h takes query row h, and writes row h of the outcome"""
        pool = Pool(context=11, heads=4)
        expect(pool.answer(ex.decode), pool.expected())


@exercise("4.8", points=2, minutes=35, bonus=True, needs="triton")
class TestGrouped:
    """Grouped heads: every key is read once"""

    def test_attention_of_a_group(self, ex):
        """each head gets what it would get alone"""
        pools = [Pool(context=context, heads=heads) for context in (1, 7, 12) for heads in (1, 4)]
        expect([pool.answer(ex.grouped) for pool in pools], [pool.expected() for pool in pools])

    def test_great_scores_of_a_group(self, ex):
        """each head has a highest score of its own"""
        pool = Pool(context=11, heads=4)
        expect(pool.answer(ex.grouped, 300.0), pool.expected(300.0))

    def test_a_key_is_read_once(self, ex):
        """keys and values come from memory once for the whole group"""
        pool = Pool(context=11, heads=4)
        with reads_of(pool.keys) as keys, reads_of(pool.values) as values:
            pool.answer(ex.grouped)
        expect([keys[0], values[0]], [88, 88], "how many numbers of the keys and of the values were read, for 11 x 8")
