"""The ladder, as a table: which parts each stage is made of, and which settings it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minibatcher.clock import Clock
from minibatcher.engine import Engine, Runner
from minibatcher.memory.allocator import Allocator
from minibatcher.memory.blocks import BlockAllocator
from minibatcher.memory.contiguous import ContiguousAllocator
from minibatcher.schedulers.base import Scheduler
from minibatcher.schedulers.chunked import ChunkedScheduler
from minibatcher.schedulers.iteration import IterationScheduler
from minibatcher.schedulers.preemptive import PreemptiveScheduler
from minibatcher.schedulers.static import StaticScheduler

if TYPE_CHECKING:  # torch is imported when a real model is asked for, not before
    from minibatcher.model.load import LoadedModel

Settings = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """allocator: makes it from the settings; None where nothing is paged. uses: settings beside those all share."""

    number: int
    name: str
    decides: str
    keeps: str
    shows: str
    scheduler: type[Scheduler]
    allocator: Callable[[Settings], Allocator] | None
    uses: frozenset[str]


SHARED = frozenset({"max_num_seqs", "max_model_len"})
QUEUE = frozenset({"max_queue", "when_full"})  # the engine's, at every stage
POOL = frozenset({"block_size", "num_blocks", "gpu_memory_utilization"})
KERNEL = frozenset({"attention_backend"})
BUDGET = frozenset({"max_num_batched_tokens", "long_prefill_token_threshold"})
PREEMPTION = frozenset(
    {"preemption", "num_cpu_blocks", "policy", "aging_s", "max_tokens_per_turn", "watermark"}
)  # fmt: skip
DEFAULTS: Settings = {
    "max_num_seqs": 16,
    "max_model_len": None,  # the model's, at most 2,048 and what the pool holds
    "max_queue": None,  # no limit
    "when_full": "reject",
    "max_wait_s": 0.0,
    "block_size": 16,
    "num_blocks": None,  # what fits in 1 GiB on a CPU, or in gpu_memory_utilization
    "gpu_memory_utilization": 0.9,
    "reserve": "max",
    "attention_backend": "auto",  # Triton on a GPU, PyTorch elsewhere
    "max_num_batched_tokens": 512,
    "long_prefill_token_threshold": 0,
    "preemption": "recompute",
    "num_cpu_blocks": None,  # as many as num_blocks
    "policy": "fcfs",
    "aging_s": None,
    "max_tokens_per_turn": None,
    "watermark": 0.01,
}
# A request has 2 tokens at least, one of the prompt and one of the output.
LEAST = {"max_num_seqs": 1, "max_queue": 0, "max_model_len": 2, "block_size": 1, "num_blocks": 1}


def _contiguous(settings: Settings) -> Allocator:
    return ContiguousAllocator(
        settings["num_blocks"], settings["block_size"], settings["max_model_len"], settings["reserve"]
    )


def _blocks(settings: Settings) -> Allocator:
    return BlockAllocator(settings["num_blocks"], settings["block_size"], settings["max_model_len"])


STAGES: Mapping[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage(
            number=1,
            name="static",
            decides="a batch at a time; nobody joins until all have left",
            keeps="a padded rectangle",
            shows="finished rows still cost a full row",
            scheduler=StaticScheduler,
            allocator=None,
            uses=frozenset({"max_wait_s"}),
        ),
        Stage(
            number=2,
            name="iteration",
            decides="leave and join at every step",
            keeps="a contiguous range per request, reserved in full",
            shows="a free lane is filled once the queue's head has room, but most memory is reserved and unused",
            scheduler=IterationScheduler,
            allocator=_contiguous,
            uses=POOL | {"reserve"},
        ),
        Stage(
            number=3,
            name="paged",
            decides="as iteration: leave and join at every step",
            keeps="blocks of 16 tokens, wherever they are free",
            shows="no holes between requests, and less than a block of waste in each",
            scheduler=IterationScheduler,
            allocator=_blocks,
            uses=POOL,
        ),
        Stage(
            number=4,
            name="kernel",
            decides="as iteration: leave and join at every step",
            keeps="blocks, as paged; the Triton kernel reads the blocks where they lie",
            shows="the same tokens, with fewer bytes moved",
            scheduler=IterationScheduler,
            allocator=_blocks,
            uses=POOL | KERNEL,
        ),
        Stage(
            number=5,
            name="chunked",
            decides="decodes first, then prompts in chunks, under a token budget",
            keeps="as paged",
            shows="a long prompt no longer stalls the streams",
            scheduler=ChunkedScheduler,
            allocator=_blocks,
            uses=POOL | KERNEL | BUDGET,
        ),
        Stage(
            number=6,
            name="preemptive",
            decides="as chunked, with blocks on demand; a victim gives way when they run out",
            keeps="as paged, and swapped requests in CPU memory",
            shows="more requests at once, and what that costs",
            scheduler=PreemptiveScheduler,
            allocator=_blocks,
            uses=POOL | KERNEL | BUDGET | PREEMPTION,
        ),
    )
}
DEFAULT_STAGE = max(STAGES.values(), key=lambda stage: stage.number).name


def uses(stage: str) -> frozenset[str]:
    """The settings that a stage takes."""
    return SHARED | QUEUE | STAGES[stage].uses


def settings_for(stage: str, given: Settings) -> Settings:
    """The stage's settings: those given, and the defaults. Raises ValueError for a name that does not belong."""
    if stage not in STAGES:
        raise ValueError(f"unknown stage {stage!r}: choose from {', '.join(STAGES)}")
    allowed = uses(stage)
    for name, value in given.items():
        if name in allowed:
            continue
        if name in DEFAULTS:
            users = ", ".join(other.name for other in STAGES.values() if name in other.uses)
            raise ValueError(f"{name}={value!r}: stage {stage!r} does not use it (used by: {users}); leave it out")
        raise ValueError(f"unknown setting {name}={value!r}: stage {stage!r} knows {', '.join(sorted(allowed))}")
    for name in given.keys() & LEAST.keys():
        value, least = given[name], LEAST[name]
        left_open = value is None and DEFAULTS[name] is None  # then the model or the memory decides
        if not left_open and (not isinstance(value, int) or value < least):
            raise ValueError(f"{name}={value!r} is not allowed: it must be an int of at least {least}")
    return {name: given.get(name, DEFAULTS[name]) for name in DEFAULTS if name in allowed}


def build_engine(
    stage: str,
    model: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    clock: Clock | None = None,
    keep_trace: bool = True,
    **settings: Any,
) -> Engine:
    """An engine of one stage. model: as `load` takes it. settings: a stage refuses what it does not use.

    Raises ValueError with the value, what is allowed and what to do.
    """
    chosen = settings_for(stage, settings)  # before the model is loaded: a typing mistake should not cost seconds
    from minibatcher.model.load import load

    loaded = load(model, dtype=dtype, device=device)
    scheduler, runner = parts(STAGES[stage], loaded, chosen)
    meta = {"stage": stage, "model": loaded.name, "device": str(loaded.model.device), "settings": chosen}
    queue = {name: chosen[name] for name in QUEUE}
    return Engine(scheduler, runner, clock, meta=meta, keep_trace=keep_trace, **queue)


def parts(stage: Stage, loaded: LoadedModel, settings: Settings) -> tuple[Scheduler, Runner]:
    """The stage's scheduler and runner; fills in the settings that depend on the model."""
    from minibatcher.memory.pool import KVPool, blocks_that_fit
    from minibatcher.model import backend
    from minibatcher.model.padded import PaddedRunner
    from minibatcher.model.rates import giving_way
    from minibatcher.model.runner import FlatRunner

    model = loaded.model

    def fit() -> int:
        size, share = settings["block_size"], settings["gpu_memory_utilization"]
        return blocks_that_fit(loaded.layers, model.dtype, model.device, size, share)

    if "attention_backend" in settings:
        asked, size = settings["attention_backend"], settings["block_size"]
        settings["attention_backend"], _ = backend.choose(asked, model.device, loaded.layers, size)
    if settings.get("preemption") == "auto" and model.device.type == "cpu":
        settings["preemption"] = "swap"  # there it is a copy from memory to memory, and always the cheaper of the two
    fill_in(stage, settings, loaded.name, loaded.max_model_len, fit)
    facts: dict[str, Any] = {"eos_token_ids": loaded.eos_token_ids, "vocab_size": loaded.vocab_size}
    if settings.get("preemption") == "auto":
        facts["giving_way"] = giving_way(model, loaded.layers, settings["block_size"])
    scheduler = make_scheduler(stage, settings, **facts)
    if stage.allocator is None:
        pad = getattr(loaded.tokenizer, "pad_token_id", None)
        return scheduler, PaddedRunner(model, pad or 0)
    pool = KVPool(
        loaded.layers,
        settings["num_blocks"],
        settings["block_size"],
        model.dtype,
        model.device,
        settings.get("num_cpu_blocks") or 0,
    )
    attention = backend.make(
        settings.get("attention_backend", "torch"), pool, settings["max_num_seqs"], settings["max_model_len"]
    )
    return scheduler, FlatRunner(model, pool, attention)


def fill_in(stage: Stage, settings: Settings, model: str, longest: int, fit: Callable[[], int]) -> None:
    """Decide what the settings leave open. longest: tokens that the model was made for. fit: blocks in its memory."""
    lanes, asked_len = settings["max_num_seqs"], settings["max_model_len"]
    if asked_len is not None and asked_len > longest:
        raise ValueError(f"max_model_len={asked_len}: the model {model!r} was made for at most {longest} tokens")
    settings["max_model_len"] = asked_len or min(longest, 2048)
    if stage.allocator and settings["num_blocks"] is None:
        # More than every lane can fill is never used, and would hide when the pool is full.
        settings["num_blocks"] = min(fit(), lanes * -(-settings["max_model_len"] // settings["block_size"]))
    if stage.allocator and asked_len is None:
        settings["max_model_len"] = min(settings["max_model_len"], settings["num_blocks"] * settings["block_size"])
    if "preemption" in settings and settings["num_cpu_blocks"] is None:
        settings["num_cpu_blocks"] = 0 if settings["preemption"] == "recompute" else settings["num_blocks"]


def make_scheduler(stage: Stage, settings: Settings, **facts: Any) -> Scheduler:
    """facts: about the model and the device, as the scheduler takes them."""
    own = {name: settings[name] for name in SHARED | stage.uses - POOL - KERNEL - {"reserve"}}
    if stage.allocator:
        facts["allocator"] = stage.allocator(settings)
    return stage.scheduler(**own, **facts)
