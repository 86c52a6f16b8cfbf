"""Exercise 1: static batching (5 points).

    minibatcher grade ex01              the board
    minibatcher grade 1.1 --hint        one more hint

A *request* is a prompt, and how many output tokens it wants. The model can work on several in one step: that is a
*batch*. The oldest way to do so is to collect some requests, put their prompts into one rectangle, a line each, and
run the model on it until the last of them has its answer. Nobody joins in between.
"""

from __future__ import annotations


def left_pad(prompts: list[list[int]], pad: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Task 1.1 (2 points, 15 minutes; after 25 take a hint): left-pad a batch, with mask and positions.

    A rectangle needs lines of one length, so shorter prompts are filled up with a pad token. They are filled up on the
    *left*: the new tokens come on the right, and there every line must end with its own last token.

    prompts   B prompts of 1 or more token ids. pad: the token id to fill up with (a prompt may contain it too).

    Returns three lists of B lines, each line as long as the longest prompt:
        input_ids        the tokens, padding first
        attention_mask   0 where a line is padding, which nobody may look at, and 1 elsewhere
        position_ids     where a token stands in its own prompt, from 0; padding has position 0

    >>> input_ids, attention_mask, position_ids = left_pad([[7, 8], [4, 5, 6]], pad=0)
    >>> input_ids
    [[0, 7, 8], [4, 5, 6]]
    >>> attention_mask
    [[0, 1, 1], [1, 1, 1]]
    >>> position_ids
    [[0, 0, 1], [0, 1, 2]]
    """
    raise NotImplementedError("Task 1.1")


def static_loop(requests: list[tuple[int, int]], max_num_seqs: int) -> list[tuple[int, int, int]]:
    """Task 1.2 (3 points, 25 minutes; after 40 take a hint): the static loop, counting rows.

    A *row* here is one token position that the model computes: a rectangle of 2 lines and 3 columns costs 6 rows.

    Take the first `max_num_seqs` requests that wait and make a batch of them. Its first step reads the rectangle of
    prompts and gives every request its first token. Each further step computes one row for every request of the batch,
    and gives those that still need one a token. The batch is over when all have their tokens; only then comes the next
    one.

    requests   (prompt tokens, output tokens), each 1 or more, in order of arrival; all are there from the start.

    Returns for every step how many of the rows computed were
        useful     tokens of a prompt, or a row that gives a request its next token
        padded     padding in front of a prompt, in the first step of a batch
        finished   the row of a request that has all its tokens already, while the batch goes on

    Two requests with prompts of 3 and 1 tokens want 1 and 3 tokens. Step 0 reads 2 lines of 3 columns:

    >>> static_loop([(3, 1), (1, 3)], max_num_seqs=2)
    [(4, 2, 0), (1, 0, 1), (1, 0, 1)]
    """
    raise NotImplementedError("Task 1.2")
