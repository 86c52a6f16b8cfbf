"""Exercise 1 in another style: numbers of tokens that run down, in a loop over steps."""

from __future__ import annotations

from collections import deque


def left_pad(prompts, pad):
    length = max(map(len, prompts))
    masks = [[int(column >= length - len(prompt)) for column in range(length)] for prompt in prompts]
    ids = [[pad for keep in mask if not keep] + prompt for mask, prompt in zip(masks, prompts, strict=True)]
    positions = [[max(0, sum(mask[: column + 1]) - 1) for column in range(length)] for mask in masks]
    return tuple(ids), tuple(masks), tuple(positions)


def static_loop(requests, max_num_seqs):
    queue, batch, steps = deque(requests), [], []
    while queue or any(left for _, left in batch):
        if not any(left for _, left in batch):
            batch = [list(queue.popleft()) for _ in range(min(max_num_seqs, len(queue)))]
            useful = sum(prompt for prompt, _ in batch)
            steps.append([useful, len(batch) * max(batch)[0] - useful, 0])
        else:
            finished = [left for _, left in batch].count(0)
            steps.append([len(batch) - finished, 0, finished])
        for request in batch:
            request[1] = max(0, request[1] - 1)
    return steps
