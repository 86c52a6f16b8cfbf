"""Solutions to exercise 0b."""

from __future__ import annotations

from minibatcher.grading.toys import ToyModel, attend


def generate(model: ToyModel, prompt: list[int], max_tokens: int) -> tuple[list[int], int]:
    new_tokens: list[int] = []
    all_keys: list[list[float]] = []
    all_values: list[list[float]] = []
    to_read = prompt
    while True:
        start = len(all_keys)
        queries, keys, values = model.read(to_read, range(start, start + len(to_read)))
        all_keys += keys
        all_values += values
        token = model.next_token(attend(queries[-1], all_keys, all_values))
        new_tokens.append(token)
        if len(new_tokens) == max_tokens:
            return new_tokens, len(all_keys)
        to_read = [token]


def kv_bytes_per_token(num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int, bytes_per_number: int) -> int:
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_number


def largest_batch(memory: int, weights: int, bytes_per_token: int, context: int) -> int:
    return max(0, (memory - weights) // (bytes_per_token * context))
