"""How long a step takes: a roofline, from data sheets or fitted to a measured run.

    step = linear layers + attention + all-reduce + swaps + overhead

The linear layers read their weights once a step, whatever the batch, and multiply every token with them; the larger
of the two times counts (Williams et al., "Roofline", CACM 2009). Attention reads the keys and values of everybody it
looks at, and its FLOPs come on top: decodes are bound by the reading, chunks of prompts by the FLOPs, and both may
occur in one step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from minibatcher.measure.architectures import Architecture
from minibatcher.measure.gpus import BYTES, GPU
from minibatcher.measure.leastsquares import robust
from minibatcher.measure.shapes import Shape, recorded
from minibatcher.memory.giving_way import GivingWay
from minibatcher.trace import Trace

# Assumptions, for no data sheet has them: what launching a step's kernels and the Python around it take (this engine's
# own Python takes a third of it with 32 requests running, see `bench --simulator`), and what one copy between GPU and
# CPU takes, however small.
OVERHEAD_S = 1e-4
COPY_S = 1e-5

Steps = list[tuple[Shape, float]]  # and the seconds that each took


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds per unit of a step's Shape.

    overlap: share of the linear layers' smaller time (computing or reading) that hides behind the larger one: 1 is
    the roofline, 0 adds them. gather: seconds per token whose keys and values are copied before they are read, where
    attention cannot read them in their blocks. efficiency: share of the data sheet's peaks that the figures assume;
    None for a fitted model, which knows no peaks. median_error, total_error: relative, of step times and of their sum,
    on measured steps that the fit has not seen; None where nothing was measured.
    """

    token: float
    sample: float
    weights: float
    pair: float
    kv: float
    gather: float = 0.0
    allreduce: float = 0.0  # per token
    swap: float = 0.0  # per request and direction
    block: float = 0.0  # per block and direction
    overhead: float = 0.0
    overlap: float = 1.0
    efficiency: float | None = None
    median_error: float | None = None
    total_error: float | None = None

    def step(self, shape: Shape) -> dict[str, float]:
        """The terms in seconds, as StepRecord.cost holds them.

        seconds: of the whole step. compute, weights: the linear layers' two times, of which the larger counts. mfu:
        FLOPs done over those possible in the step's time, mbu: the same for bytes (weights, keys and values); both
        only where the peaks are known.
        """
        compute = self.token * shape.tokens + self.sample * shape.sampled
        attention, kv, gather = self.pair * shape.pairs, self.kv * shape.kv, self.gather * shape.kv
        allreduce = self.allreduce * shape.tokens
        swap = self.swap * shape.swaps + self.block * shape.blocks
        linear = max(compute, self.weights) + (1 - self.overlap) * min(compute, self.weights)
        seconds = linear + attention + kv + gather + allreduce + swap + self.overhead
        terms = {
            "seconds": seconds,
            "compute": compute,
            "weights": self.weights,
            "attention": attention,
            "kv": kv,
            "gather": gather,
            "allreduce": allreduce,
            "swap": swap,
            "overhead": self.overhead,
        }
        if self.efficiency is not None:
            terms["mfu"] = self.efficiency * (compute + attention) / seconds
            terms["mbu"] = self.efficiency * (self.weights + kv + gather) / seconds
        return terms

    @property
    def giving_way(self) -> GivingWay:
        """What a victim of preemption costs, for preemption="auto"."""
        return GivingWay(self.token, self.weights, self.pair, self.swap, self.block)

    @property
    def trust(self) -> str:
        """How far the figures can be trusted, in words: shown beside them."""
        if self.efficiency is not None:
            share = "" if self.efficiency == 1 else f" x {self.efficiency:g}"
            return f"data sheet peaks{share}, compared with no measurement (at the peaks nothing real is faster)"
        if self.median_error is None or self.total_error is None:
            return "given by hand, compared with no measurement"
        met = self.median_error < 0.10 and abs(self.total_error) < 0.05
        verdict = "" if met else "; that misses the aim of 10% a step and 5% in all, so take the figures as rough"
        return (
            f"fitted to a measured run; with either half of its batch sizes predicted from the other, a step is off by "
            f"{self.median_error:.1%} (median), their sum by {self.total_error:+.1%}{verdict}"
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def fit(cls, trace: Trace) -> CostModel:
        """The same form, fitted to a measured trace.

        Its errors come from two other fits: one to the steps of 1, 4, 5, 8, 9 ... requests predicts those of 2, 3, 6,
        7 ... requests, and one to these predicts the former. The overhead is the median time between two steps: on a
        GPU, whose steps are its own times, Python's. Within a step a fixed overhead cannot be told from reading the
        weights, and is part of it; steps with a swap are left out.

        Raises ValueError for a modelled trace, and for one with fewer than 20 steps in either half.
        """
        if trace.meta.get("clock") == "virtual":
            raise ValueError("this trace was modelled, not measured: fit one of a real engine")
        halves: tuple[Steps, Steps] = ([], [])
        for record, shape in recorded(trace):
            if record.t1 > record.t0 and not shape.swaps:
                halves[len({work.id for work in record.work}) // 2 % 2].append((shape, record.t1 - record.t0))
        if min(map(len, halves)) < 20:
            raise ValueError(
                f"{len(halves[0])} steps of 1, 4, 5, 8, 9 ... requests and {len(halves[1])} of 2, 3, 6, 7 ...: a fit "
                "needs at least 20 of each. Record a longer run in which requests come and go"
            )
        costs = cls._fit(halves[0] + halves[1])
        pairs = [
            (one.step(shape)["seconds"], seconds)
            for one, others in ((cls._fit(halves[0]), halves[1]), (cls._fit(halves[1]), halves[0]))
            for shape, seconds in others
        ]
        return replace(
            costs,
            overhead=max(0.0, median(after.t0 - before.t1 for before, after in pairwise(trace))),
            median_error=median(abs(predicted / seconds - 1) for predicted, seconds in pairs),
            total_error=sum(predicted for predicted, _ in pairs) / sum(seconds for _, seconds in pairs) - 1,
        )

    @classmethod
    def _fit(cls, steps: Steps) -> CostModel:
        tried = [cls._fit_overlap(steps, overlap / 4) for overlap in range(5)]
        return min(tried, key=lambda costs: sum(abs(costs.step(s)["seconds"] / seconds - 1) for s, seconds in steps))

    @classmethod
    def _fit_overlap(cls, steps: Steps, overlap: float) -> CostModel:
        """For a given overlap the form is linear, once it is known which steps computing bounds: guess, fit, repeat."""
        times = [seconds for _, seconds in steps]
        hidden = 1 - overlap
        costs = cls(0.0, 0.0, 0.0, 0.0, 0.0, overlap=overlap)
        usual = median(shape.tokens for shape, _ in steps)
        bound = [shape.tokens > usual for shape, _ in steps]
        for _ in range(10):
            rows = []
            for (shape, _), by_compute in zip(steps, bound, strict=True):
                linear, reading = (1.0, hidden) if by_compute else (hidden, 1.0)
                rows.append((linear * shape.tokens, linear * shape.sampled, reading, shape.pairs, shape.kv))
            token, sample, weights, pair, kv = robust(rows, times)
            costs = cls(token, sample, weights, pair, kv, overlap=overlap)
            before, bound = bound, [token * s.tokens + sample * s.sampled > weights for s, _ in steps]
            if bound == before:
                break
        return costs


def roofline(
    gpu: GPU,
    model: Architecture,
    *,
    dtype: str = "bfloat16",
    tensor_parallel_size: int = 1,
    efficiency: float = 1.0,
    block_size: int = 16,
    gathers: bool = False,
    overhead_s: float = OVERHEAD_S,
    copy_s: float = COPY_S,
) -> CostModel:
    """The cost model of steps on modelled GPUs.

    dtype: of weights, keys and values alike. tensor_parallel_size: GPUs that share every layer; each reads and
    computes its part, and two all-reduces a layer bring the parts together (Megatron-LM, 2019), a ring over the peer
    link. efficiency: share of the peaks that the kernels reach. gathers: attention copies keys and values out of
    their blocks first, so it reads and writes them once more. copy_s: of a single copy between GPU and CPU; a swap
    makes one for the keys and one for the values of every layer.

    Raises ValueError for a type that the GPU cannot compute in, an efficiency outside 0 to 1, a negative time, or a
    degree of tensor parallelism that does not divide the model's heads.
    """
    tp = tensor_parallel_size
    if not 0 < efficiency <= 1:
        raise ValueError(f"efficiency={efficiency} is not allowed: it is a share of the peaks, above 0 and at most 1")
    if tp < 1 or model.heads % tp:
        raise ValueError(f"tensor_parallel_size={tp} is not allowed: it must divide {model.name}'s {model.heads} heads")
    if overhead_s < 0 or copy_s < 0:
        raise ValueError(f"overhead_s={overhead_s}, copy_s={copy_s}: only seconds of 0 or more are allowed")
    flops = gpu.peak(dtype) * efficiency * tp
    bandwidth = gpu.bandwidth * efficiency * tp
    size = BYTES[dtype]
    kv_bytes = token_bytes(model, dtype, tp)
    all_reduce = 2 * (tp - 1) / tp * model.hidden * size / gpu.peer_link
    return CostModel(
        token=2 * model.layer_weights / flops,
        sample=2 * model.output_weights / flops,
        weights=(model.layer_weights + model.output_weights) * size / bandwidth,
        pair=model.pair_flops / flops,
        kv=kv_bytes / bandwidth,
        gather=2 * kv_bytes / bandwidth if gathers else 0.0,
        allreduce=2 * model.layers * all_reduce,
        swap=2 * model.layers * copy_s,
        block=block_size * kv_bytes / (gpu.host_link * tp),
        overhead=overhead_s,
        efficiency=efficiency,
    )


def token_bytes(model: Architecture, dtype: str, tensor_parallel_size: int) -> int:
    """Of one token's keys and values on all GPUs; with more GPUs than kv heads, several keep the same head."""
    return model.kv_values * BYTES[dtype] * max(1, tensor_parallel_size // model.kv_heads)
