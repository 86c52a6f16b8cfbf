"""Public figures of a few GPUs, as their vendors give them.

Every figure is a peak: no kernel is faster, and good ones reach 50 to 80% of it. FLOP/s are dense; where a data sheet
gives only the figure "with sparsity", half of it stands here. Bytes are counted in powers of ten, as data sheets do.
A link is counted in one direction: half of what data sheets call its bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GB, TB, TFLOPS = 1e9, 1e12, 1e12
BYTES: Mapping[str, int] = {"float16": 2, "bfloat16": 2, "float8": 1}  # of a weight, and of a key or value


@dataclass(frozen=True)
class GPU:
    """memory: bytes. bandwidth: of the memory, bytes/s. flops: dense FLOP/s of the matrix units, by type.

    host_link, peer_link: bytes/s in one direction, to the CPU and to the other GPUs together.
    """

    name: str
    memory: float
    bandwidth: float
    flops: Mapping[str, float]
    host_link: float
    peer_link: float

    def peak(self, dtype: str) -> float:
        """FLOP/s. Raises ValueError for a type that the GPU's matrix units do not have."""
        if dtype not in self.flops:
            raise ValueError(f"dtype={dtype!r}: {self.name} computes in {', '.join(self.flops)}; choose one of them")
        return self.flops[dtype]


GPUS: Mapping[str, GPU] = {
    gpu.name: gpu
    for gpu in (
        # NVIDIA T4 product brief PB-09256 and data sheet: 320 GB/s, 65 TFLOPS in FP16 (no BF16), PCIe 3.0 x16.
        GPU("t4", 16 * GB, 320 * GB, {"float16": 65 * TFLOPS}, 16 * GB, 16 * GB),
        # NVIDIA L4 data sheet: 300 GB/s, FP16 and BF16 242, FP8 485 TFLOPS with sparsity, PCIe 4.0 x16.
        GPU(
            "l4",
            24 * GB,
            300 * GB,
            {"float16": 121 * TFLOPS, "bfloat16": 121 * TFLOPS, "float8": 242.5 * TFLOPS},
            32 * GB,
            32 * GB,
        ),
        # NVIDIA A10G data sheet (the card of AWS G5, not the A10): 600 GB/s, FP16 and BF16 70 TFLOPS, PCIe 4.0 x16.
        GPU("a10g", 24 * GB, 600 * GB, {"float16": 70 * TFLOPS, "bfloat16": 70 * TFLOPS}, 32 * GB, 32 * GB),
        # NVIDIA A100 data sheet, SXM 80 GB: 2,039 GB/s, 312 TFLOPS, PCIe 4.0 x16, NVLink 600 GB/s.
        GPU("a100", 80 * GB, 2039 * GB, {"float16": 312 * TFLOPS, "bfloat16": 312 * TFLOPS}, 32 * GB, 300 * GB),
        # NVIDIA H100 data sheet, SXM: 3.35 TB/s, FP16 and BF16 1,979, FP8 3,958 TFLOPS with sparsity, PCIe 5.0 x16,
        # NVLink 900 GB/s.
        GPU(
            "h100",
            80 * GB,
            3.35 * TB,
            {"float16": 989.5 * TFLOPS, "bfloat16": 989.5 * TFLOPS, "float8": 1979 * TFLOPS},
            64 * GB,
            450 * GB,
        ),
        # NVIDIA H200 data sheet, SXM: 141 GB at 4.8 TB/s; the rest as H100.
        GPU(
            "h200",
            141 * GB,
            4.8 * TB,
            {"float16": 989.5 * TFLOPS, "bfloat16": 989.5 * TFLOPS, "float8": 1979 * TFLOPS},
            64 * GB,
            450 * GB,
        ),
        # NVIDIA DGX B200 data sheet, an eighth of the system: 1,440 GB at 64 TB/s, FP8 72 PFLOPS with sparsity (FP16
        # and BF16 half of it), NVLink 14.4 TB/s. Its hosts have PCIe 5.0 x16 (MLPerf Inference 6.0 system files).
        GPU(
            "b200",
            180 * GB,
            8 * TB,
            {"float16": 2250 * TFLOPS, "bfloat16": 2250 * TFLOPS, "float8": 4500 * TFLOPS},
            64 * GB,
            900 * GB,
        ),
        # AMD Instinct MI300X data sheet: 5.3 TB/s, FP16 and BF16 1,307.4, FP8 2,614.9 TFLOPS, PCIe 5.0 x16, seven
        # Infinity Fabric links of 128 GB/s.
        GPU(
            "mi300x",
            192 * GB,
            5.3 * TB,
            {"float16": 1307.4 * TFLOPS, "bfloat16": 1307.4 * TFLOPS, "float8": 2614.9 * TFLOPS},
            64 * GB,
            448 * GB,
        ),
    )
}


def gpu(name: str) -> GPU:
    """Raises ValueError, with the list, for a name that is not in it."""
    if name.lower() not in GPUS:
        raise ValueError(f"unknown GPU {name!r}: choose from {', '.join(GPUS)}")
    return GPUS[name.lower()]
