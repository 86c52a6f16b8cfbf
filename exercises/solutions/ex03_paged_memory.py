"""Solutions to exercise 3."""

from __future__ import annotations

from minibatcher import Request


def slot_mapping(block_table: list[int], start: int, end: int, block_size: int) -> list[int]:
    return [block_table[p // block_size] * block_size + p % block_size for p in range(start, end)]


class BlockAllocator:
    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free_blocks = list(range(num_blocks))

    @property
    def free(self) -> int:
        return len(self.free_blocks)

    def take(self, n: int) -> list[int] | None:
        if n > self.free:
            return None
        return [self.free_blocks.pop() for _ in range(n)]

    def give_back(self, blocks: list[int]) -> None:
        if len(set(blocks)) < len(blocks):
            raise ValueError(f"blocks {blocks}: one of them is given back twice")
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise ValueError(f"there is no block {block}")
            if block in self.free_blocks:
                raise ValueError(f"block {block} is free already")
        self.free_blocks += blocks


class SharedBlockAllocator:
    def __init__(self, num_blocks: int) -> None:
        self.owners = [0] * num_blocks
        self.free_blocks = list(range(num_blocks))

    @property
    def free(self) -> int:
        return len(self.free_blocks)

    def take(self, n: int) -> list[int] | None:
        if n > self.free:
            return None
        blocks = [self.free_blocks.pop() for _ in range(n)]
        for block in blocks:
            self.owners[block] = 1
        return blocks

    def share(self, blocks: list[int]) -> None:
        self.look_up(blocks)
        for block in blocks:
            if self.owners[block] == 0:
                raise ValueError(f"block {block} is free: there is nothing in it to share")
        for block in blocks:
            self.owners[block] += 1

    def give_back(self, blocks: list[int]) -> None:
        self.look_up(blocks)
        for block in blocks:
            if self.owners[block] < blocks.count(block):
                raise ValueError(f"block {block} has fewer owners than that")
        for block in blocks:
            self.owners[block] -= 1
            if self.owners[block] == 0:
                self.free_blocks.append(block)

    def look_up(self, blocks: list[int]) -> None:
        for block in blocks:
            if not 0 <= block < len(self.owners):
                raise ValueError(f"there is no block {block}")


def admit(
    waiting: list[Request], free_lanes: int, free_blocks: int, block_size: int, max_model_len: int
) -> tuple[dict[Request, int], str | None]:
    joining: dict[Request, int] = {}
    for request in waiting:
        tokens = min(len(request.prompt_token_ids) + request.params.max_tokens, max_model_len)
        needed = -(-tokens // block_size)  # rounded up
        if len(joining) == free_lanes:
            return joining, "no lane is free"
        if needed > free_blocks:
            return joining, f"needs {needed} blocks, {free_blocks} free"
        joining[request] = needed
        free_blocks -= needed
    return joining, None


def waste(owners: list[str | None], lengths: dict[str, int], block_size: int, needed: int) -> tuple[int, int]:
    taken = len(owners) - owners.count(None)
    internal = taken * block_size - sum(lengths.values())

    longest = hole = 0
    for owner in owners:
        hole = hole + 1 if owner is None else 0
        longest = max(longest, hole)
    free = owners.count(None)
    external = free * block_size if longest < needed <= free else 0
    return internal, external
