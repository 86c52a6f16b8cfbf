"""Solutions to exercise 2."""

from __future__ import annotations

from minibatcher import FinishReason, Request


def schedule_by_hand() -> list[str]:
    return [
        "AaaaDddFff",
        "BbCcccc...",
        "....Ee....",
    ]


def who_joins(waiting: list[int], free_lanes: int, free_tokens: int) -> list[int]:
    joining: list[int] = []
    for place, tokens in enumerate(waiting):
        if len(joining) == free_lanes or tokens > free_tokens:
            break
        joining.append(place)
        free_tokens -= tokens
    return joining


def flatten(work: dict[Request, int]) -> tuple[list[int], list[int], list[int], list[int]]:
    input_ids: list[int] = []
    positions: list[int] = []
    cu_seqlens = [0]
    last_rows = []
    for request, n in work.items():
        start, end = request.num_computed, request.num_computed + n
        input_ids += request.token_ids[start:end]
        positions += range(start, end)
        cu_seqlens.append(len(input_ids))
        if end == len(request.token_ids):
            last_rows.append(len(input_ids) - 1)
    return input_ids, positions, cu_seqlens, last_rows


def commit(work: dict[Request, int], sampled: dict[Request, int], eos: int) -> list[Request]:
    finished = []
    for request, n in work.items():
        request.num_computed += n
        if request not in sampled:
            continue
        token = sampled[request]
        request.token_ids.append(token)
        if token == eos:
            request.finish_reason = FinishReason.STOP
        elif len(request.output_token_ids) == request.params.max_tokens:
            request.finish_reason = FinishReason.LENGTH
        if request.finish_reason:
            finished.append(request)
    return finished
