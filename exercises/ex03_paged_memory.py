"""Exercise 3: paged memory (12 points).

    minibatcher grade ex03              the board
    minibatcher grade 3.1 --hint        one more hint

The keys and values of all requests lie in a *pool*. It is cut into blocks with room for `block_size` tokens each. A
request's *block table* lists its blocks in the order of its tokens; which blocks they are does not matter (the vLLM
paper, SOSP'23, section 4).

    block_size 4    block_table [7, 2]     its tokens 0 to 3 lie in block 7, its tokens 4 to 7 in block 2

A *slot* is one token's place in the pool: block b has the slots b * block_size up to b * block_size + block_size - 1.
"""

from __future__ import annotations

from minibatcher import Request


def slot_mapping(block_table: list[int], start: int, end: int, block_size: int) -> list[int]:
    """Task 3.1 (2 points, 10 minutes; after 20 take a hint): the slots of a request's tokens.

    A token's position says which entry of the block table leads to it, and where in that block it lies.

    block_table   the request's blocks, in the order of its tokens.
    start, end    the positions wanted: from start up to, but not including, end.

    Returns one slot for each of these positions.

    >>> slot_mapping([7, 2], start=2, end=6, block_size=4)
    [30, 31, 8, 9]
    """
    raise NotImplementedError("Task 3.1")


class BlockAllocator:
    """Task 3.2 (3 points, 30 minutes; after 45 take a hint): who has which block?

    A pool of blocks, numbered from 0, all free at first. Any free block will do, so there is nothing to search: the
    allocator only has to remember which blocks are free, and to notice when somebody gives back what is free already
    (two requests would then write to the same block).

    >>> allocator = BlockAllocator(num_blocks=3)
    >>> blocks = allocator.take(2)
    >>> len(blocks), allocator.free
    (2, 1)
    >>> allocator.take(2) is None, allocator.free
    (True, 1)
    >>> allocator.give_back(blocks)
    >>> allocator.free
    3
    """

    def __init__(self, num_blocks: int) -> None:
        raise NotImplementedError("Task 3.2")

    @property
    def free(self) -> int:
        """How many blocks are free."""
        raise NotImplementedError("Task 3.2")

    def take(self, n: int) -> list[int] | None:
        """n different blocks that were free; or, if there are fewer, None, and nothing is taken."""
        raise NotImplementedError("Task 3.2")

    def give_back(self, blocks: list[int]) -> None:
        """These blocks are free again.

        Raises ValueError when one of them is free already, is given back twice in this call, or does not exist; then
        nothing has changed.
        """
        raise NotImplementedError("Task 3.2")


class SharedBlockAllocator:
    """Task 3.3 (2 points, 20 minutes; after 30 take a hint): blocks with several owners.

    Two requests that begin with the same text can read the same blocks. So each block has a *reference count*, the
    number of its owners, and it is free when the last of them has given it back.

    >>> allocator = SharedBlockAllocator(num_blocks=3)
    >>> blocks = allocator.take(2)
    >>> allocator.share(blocks)
    >>> allocator.give_back(blocks)
    >>> allocator.free
    1
    >>> allocator.give_back(blocks)
    >>> allocator.free
    3
    """

    def __init__(self, num_blocks: int) -> None:
        raise NotImplementedError("Task 3.3")

    @property
    def free(self) -> int:
        """How many blocks nobody owns."""
        raise NotImplementedError("Task 3.3")

    def take(self, n: int) -> list[int] | None:
        """n different free blocks, each with one owner now; or None, and nothing is taken."""
        raise NotImplementedError("Task 3.3")

    def share(self, blocks: list[int]) -> None:
        """Each of these blocks has one owner more. A block may be in the list several times; each counts.

        Raises ValueError when one of them is free or does not exist; then nothing has changed.
        """
        raise NotImplementedError("Task 3.3")

    def give_back(self, blocks: list[int]) -> None:
        """Each of these blocks has one owner less; a block that is in the list twice loses two.

        Raises ValueError when one of them has fewer owners than that, or does not exist; then nothing has changed.
        """
        raise NotImplementedError("Task 3.3")


def admit(
    waiting: list[Request], free_lanes: int, free_blocks: int, block_size: int, max_model_len: int
) -> tuple[dict[Request, int], str | None]:
    """Task 3.4 (3 points, 25 minutes; after 40 take a hint): admission by blocks.

    A request that joins reserves the blocks for all the tokens that it may ever have: its prompt and its max_tokens,
    but no more than max_model_len, where it would be cut off. Nobody overtakes: the first one that does not fit stops
    all behind it. (Of a Request you need `len(request.prompt_token_ids)` and `request.params.max_tokens`.)

    waiting   in order of arrival; the list is not changed. free_lanes, free_blocks: what is free now.

    Returns
        the requests that join, in order, with the number of blocks that each reserves;
        why the first one that waits on does so, in words; None if nobody does. If it lacks blocks, the text has two
        numbers, what it needs and what is free by then: "needs 3 blocks, 1 free". If it lacks a lane, it has the word
        "lane". If it lacks both, either reason will do.

    >>> from minibatcher import SamplingParams
    >>> a = Request([1] * 5, SamplingParams(max_tokens=4), "a")
    >>> b = Request([1] * 6, SamplingParams(max_tokens=6), "b")
    >>> joining, why = admit([a, b], free_lanes=2, free_blocks=4, block_size=4, max_model_len=100)
    >>> [(request.request_id, blocks) for request, blocks in joining.items()], why
    ([('a', 3)], 'needs 3 blocks, 1 free')
    """
    raise NotImplementedError("Task 3.4")


def waste(owners: list[str | None], lengths: dict[str, int], block_size: int, needed: int) -> tuple[int, int]:
    """Task 3.5 (2 points, 20 minutes; after 30 take a hint): internal and external waste of a layout.

    Before paging, a request had to have its blocks in a row. Then two kinds of room are lost:
      internal   inside of what a request has: tokens of its blocks that it will never fill;
      external   free, but scattered: the request that waits needs `needed` blocks in a row, no hole is that long, and
                 yet all free blocks together would be enough. Then all of them are lost; otherwise none is.

    owners    for each block of the pool, in order, the name of the request that has it, or None where it is free.
    lengths   how many tokens each of these requests will have in the end.

    Returns internal and external waste, in tokens.

    Two requests, a with 6 tokens and b with 4, blocks of 4 tokens, and two holes of one block each:

    >>> waste(["a", "a", None, "b", None], {"a": 6, "b": 4}, block_size=4, needed=2)
    (2, 8)
    """
    raise NotImplementedError("Task 3.5")
