"""Exercise 0b: a KV cache from scratch (6 points).

    minibatcher grade ex00b             the board
    minibatcher grade 0b.1 --hint       one more hint

A *token* is a piece of text, as a number. A language model reads tokens (the *prompt*) and names the token that comes
next; that one is put behind the others, and so on, until the answer (the *output*) is there.

To read a token, attention looks back: the token's *query* is compared with the *keys* of all tokens up to itself, and
the *values* of those that fit are mixed. A key and a value depend on tokens up to their own, never on later ones, so
once computed they never change and can be kept. (In this toy, on their own token and position alone.)
"""

from __future__ import annotations

from minibatcher.grading.toys import ToyModel, attend


def generate(model: ToyModel, prompt: list[int], max_tokens: int) -> tuple[list[int], int]:
    """Task 0b.1 (4 points, 25 minutes; after 40 take a hint): generate with a KV cache.

    Give the model each token once and keep its keys and values: the prompt in one go, then every new token as it comes.
    Without the cache the whole text would be read again for each token.

    model    `model.read(token_ids, positions)` returns three lists, `queries, keys, values`, with one vector for each
             of the tokens it is given. Positions count from 0 through the whole text.
             `model.next_token(attended)` returns the id of the next token, where
             `attended = attend(query of the last token, all keys so far, all values so far)`.
             `attend` wants one query (a vector), and one key and one value for each token.
    prompt   1 or more token ids.
    max_tokens   how many new tokens are wanted, 1 or more.

    Returns the new tokens, and how many tokens the model has read in all. The last new token is not read: nobody asks
    what comes after it.

    >>> generate(ToyModel(), prompt=[5, 7, 9], max_tokens=4)
    ([46, 7, 42, 38], 6)
    """
    raise NotImplementedError("Task 0b.1")


def kv_bytes_per_token(num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int, bytes_per_number: int) -> int:
    """Task 0b.2, first half (2 points, 15 minutes; after 25 take a hint): what one token in the cache costs, in bytes.

    Every layer keeps a key and a value of the token. Each consists of `num_kv_heads` vectors of `head_dim` numbers;
    the `num_heads` query heads share them in groups and keep nothing.

    >>> kv_bytes_per_token(num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128, bytes_per_number=2)
    131072
    """
    raise NotImplementedError("Task 0b.2")


def largest_batch(memory: int, weights: int, bytes_per_token: int, context: int) -> int:
    """Task 0b.2, second half: how many requests fit on the GPU at the same time.

    memory, weights: bytes of the GPU, and of the model's weights, which stay there. bytes_per_token: from above.
    context: tokens that each request has in the cache. Returns a whole number, 0 when not even one fits.

    A GPU of 80 GB, a model of 8 billion weights of 2 bytes, and 2,000 tokens a request:

    >>> largest_batch(memory=80 * 10**9, weights=16 * 10**9, bytes_per_token=131072, context=2000)
    244
    """
    raise NotImplementedError("Task 0b.2")
