"""The ladder, as a table: which parts each stage is made of, and which settings it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minibatcher.clock import Clock
from minibatcher.engine import Engine, Runner
from minibatcher.memory.allocator import Allocator
from minibatcher.memory.contiguous import ContiguousAllocator
from minibatcher.schedulers.base import Scheduler
from minibatcher.schedulers.iteration import IterationScheduler
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


SHARED = {"max_num_seqs": 16, "max_model_len": None}
DEFAULTS: Settings = {
    **SHARED,
    "max_wait_s": 0.0,
    "block_size": 16,
    "num_blocks": None,
    "gpu_memory_utilization": 0.9,
    "reserve": "max",
}
POOL = frozenset({"block_size", "num_blocks", "gpu_memory_utilization"})
NOT_BUILT = frozenset(
    {
        "max_num_batched_tokens",
        "preemption",
        "num_cpu_blocks",
        "policy",
        "aging_s",
        "max_tokens_per_turn",
        "long_prefill_token_threshold",
        "watermark",
        "attention_backend",
    }
)


def _contiguous(settings: Settings) -> Allocator:
    return ContiguousAllocator(
        settings["num_blocks"], settings["block_size"], settings["max_model_len"], settings["reserve"]
    )


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
            shows="no idle lanes, but most of the memory is reserved and unused",
            scheduler=IterationScheduler,
            allocator=_contiguous,
            uses=POOL | {"reserve"},
        ),
    )
}
DEFAULT_STAGE = max(STAGES.values(), key=lambda stage: stage.number).name


def settings_for(stage: str, given: Settings) -> Settings:
    """The stage's settings: those given, and the defaults. Raises ValueError for a name that does not belong."""
    if stage not in STAGES:
        raise ValueError(f"unknown stage {stage!r}: choose from {', '.join(STAGES)}")
    allowed = SHARED.keys() | STAGES[stage].uses
    for name, value in given.items():
        if name in allowed:
            continue
        if name in NOT_BUILT:
            raise ValueError(f"{name}={value!r}: this setting is not built yet; leave it out")
        if name in DEFAULTS:
            users = ", ".join(other.name for other in STAGES.values() if name in other.uses)
            raise ValueError(f"{name}={value!r}: stage {stage!r} does not use it (used by: {users}); leave it out")
        raise ValueError(f"unknown setting {name}={value!r}: stage {stage!r} knows {', '.join(sorted(allowed))}")
    return {name: given.get(name, DEFAULTS[name]) for name in DEFAULTS if name in allowed}


def build_engine(
    stage: str,
    model: Any = "smollm2",
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
    return Engine(scheduler, runner, clock, meta=meta, keep_trace=keep_trace)


def parts(stage: Stage, loaded: LoadedModel, settings: Settings) -> tuple[Scheduler, Runner]:
    """The stage's scheduler and runner; fills in the settings that depend on the model."""
    from minibatcher.memory.pool import KVPool, blocks_that_fit
    from minibatcher.model.padded import PaddedRunner
    from minibatcher.model.runner import FlatRunner

    model, lanes, asked_len = loaded.model, settings["max_num_seqs"], settings["max_model_len"]
    if asked_len is not None and asked_len > loaded.max_model_len:
        raise ValueError(
            f"max_model_len={asked_len}: the model {loaded.name!r} was made for at most {loaded.max_model_len} tokens"
        )
    settings["max_model_len"] = asked_len or min(loaded.max_model_len, 2048)
    if stage.allocator and settings["num_blocks"] is None:
        size = settings["block_size"]
        fit = blocks_that_fit(loaded.layers, model.dtype, model.device, size, settings["gpu_memory_utilization"])
        # More than every lane can fill is never used, and would hide when the pool is full.
        settings["num_blocks"] = min(fit, lanes * -(-settings["max_model_len"] // size))
    if stage.allocator and asked_len is None:
        settings["max_model_len"] = min(settings["max_model_len"], settings["num_blocks"] * settings["block_size"])

    shared = {"max_num_seqs": lanes, "max_model_len": settings["max_model_len"]}
    shared |= {"eos_token_ids": loaded.eos_token_ids, "vocab_size": loaded.vocab_size}
    own = {name: settings[name] for name in stage.uses - POOL - {"reserve"}}
    if stage.allocator is None:
        pad = getattr(loaded.tokenizer, "pad_token_id", None)
        return stage.scheduler(**shared, **own), PaddedRunner(model, pad or 0)
    scheduler = stage.scheduler(**shared, **own, allocator=stage.allocator(settings))
    pool = KVPool(loaded.layers, settings["num_blocks"], settings["block_size"], model.dtype, model.device)
    return scheduler, FlatRunner(model, pool, lanes, settings["max_model_len"])
