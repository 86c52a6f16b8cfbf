"""Solutions to exercise 1."""

from __future__ import annotations


def left_pad(prompts: list[list[int]], pad: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    input_ids, attention_mask, position_ids = [], [], []
    longest = max(len(prompt) for prompt in prompts)
    for prompt in prompts:
        padding = longest - len(prompt)
        input_ids.append([pad] * padding + prompt)
        attention_mask.append([0] * padding + [1] * len(prompt))
        position_ids.append([0] * padding + list(range(len(prompt))))
    return input_ids, attention_mask, position_ids


def static_loop(requests: list[tuple[int, int]], max_num_seqs: int) -> list[tuple[int, int, int]]:
    steps = []
    waiting = list(requests)
    while waiting:
        batch, waiting = waiting[:max_num_seqs], waiting[max_num_seqs:]
        prompts = [prompt for prompt, _ in batch]
        outputs = [output for _, output in batch]
        steps.append((sum(prompts), max(prompts) * len(batch) - sum(prompts), 0))
        for have in range(1, max(outputs)):
            going_on = sum(output > have for output in outputs)
            steps.append((going_on, 0, len(batch) - going_on))
    return steps
