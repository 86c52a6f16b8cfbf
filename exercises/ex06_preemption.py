"""Exercise 6: preemption (6 points).

    minibatcher grade ex06              the board
    minibatcher grade 6.1 --hint        one more hint

Nobody knows how long an answer will be. If blocks are taken only when they are needed, more requests run at once; and
sometimes a decode needs a block, and none is free. Then somebody has to give way.
"""

from __future__ import annotations

from minibatcher import Request


def make_room(
    request: Request, running: list[Request], waiting: list[Request], free_blocks: list[int], block_size: int
) -> bool:
    """Task 6.1 (3 points, 30 minutes; after 45 take a hint): make room for a request's next token.

    Give the request blocks until its block table has room for all of its tokens. While a block is needed and none is
    free, the *last* of `running` gives way: it came last, so the least is lost. Its blocks are free then, and what was
    in them is lost. But its tokens are not: later it will be computed again from them, output included. It goes back to
    the front of the queue, since it came before all who wait there. It may be the request itself that gives way; then
    there is nothing more to do for it.

    request       one of `running`. What matters of a request: token_ids, num_computed, and block_table, its blocks.
    running       all that run, in order of arrival.
    waiting       all that wait, in order of arrival; all of them came later than those that run.
    free_blocks   the numbers of the free blocks.
    Changes the lists and the requests. Returns True when the request has room, False when it gave way itself.

    Blocks of 4 tokens; `a` has 8 tokens and needs a ninth place, `b` gives way:

    >>> a, b = Request([1] * 9, request_id="a"), Request([2] * 3, request_id="b")
    >>> a.block_table, a.num_computed, b.block_table, b.num_computed = [0, 1], 8, [2], 3
    >>> running, waiting, free_blocks = [a, b], [], []
    >>> make_room(a, running, waiting, free_blocks, block_size=4)
    True
    >>> a.block_table, b.block_table, b.num_computed, running == [a], waiting == [b]
    ([0, 1, 2], [], 0, True, True)
    """
    raise NotImplementedError("Task 6.1")


class AgingQueue:
    """Task 6.2 (3 points, 30 minutes; after 45 take a hint): a queue with ageing.

    Whoever is more important goes first: a smaller number is more important. But if important requests keep coming, an
    unimportant one would wait for ever. So waiting counts: each `aging_s` seconds of waiting make up for one level.
    A request of priority 3 that has waited for 3 * aging_s seconds is as important as one of priority 0 that comes now.

    What is asked for is a bound, not one order. A request that came d levels less important must
      - not be overtaken by any that comes more than (d + 1) * aging_s seconds after it;
      - be overtaken by those that come less than (d - 1) * aging_s seconds after it, while it still waits.
    Of two with the same priority the one that came first goes first.

    >>> queue = AgingQueue(aging_s=10)
    >>> queue.add("unimportant", priority=3, now=0)
    >>> queue.add("important", priority=0, now=5)
    >>> queue.add("late", priority=0, now=60)
    >>> queue.pop(now=60), queue.pop(now=60), queue.pop(now=60), queue.pop(now=60)
    ('important', 'unimportant', 'late', None)
    """

    def __init__(self, aging_s: float) -> None:
        raise NotImplementedError("Task 6.2")

    def add(self, name: str, priority: int, now: float) -> None:
        """A request comes at the time `now` (in seconds; it never goes back)."""
        raise NotImplementedError("Task 6.2")

    def pop(self, now: float) -> str | None:
        """The name of the request that goes first now, which leaves the queue; None when nobody waits."""
        raise NotImplementedError("Task 6.2")
