"""Compile a kernel for a GPU that is not there, and read what the compiler made of it.

    python -m minibatcher_kernels.compiled paged_attention --arch sm_90
    python -m minibatcher_kernels.compiled all --arch gfx942 --head-dim 80
    python -m minibatcher_kernels.compiled paged_decode --arch sm_80 --show sass

Nothing runs, so no GPU is needed, only Triton (Linux) in a process without TRITON_INTERPRET. The wrapper itself chooses
the tiles: it is called with tensors that have shapes but no memory (device "meta"), and its launches are recorded and
compiled instead of run. What to look for in the table:

registers   A multiprocessor has 65,536 for all its threads. A thread that needs many leaves room for few others.
spills      Bytes of a thread's registers that did not fit and live in memory. It should be 0.
shared      Bytes of shared memory of a program: the tiles in flight. It bounds how many programs fit side by side.
loads       Global loads by width. 16 bytes is the widest; narrow ones take as many instructions for less data. The few
            narrow ones left here load table entries and lengths.
tensor core The instruction that multiplies tiles (HMMA, HGMMA, UTCHMMA; v_mfma on AMD), or "no".
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

NAMES = ("kv_write", "paged_decode_naive", "paged_decode", "paged_decode_split", "paged_attention")
ARCHS = ("sm_80", "sm_90", "sm_100", "gfx942")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
TRITON_TYPES = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


@dataclass(frozen=True)
class Compiled:
    """One kernel as machine code. `spills` and `shared` in bytes; `loads` counts global loads by width in bytes."""

    kernel: str
    arch: str
    num_warps: int
    registers: int
    spills: int
    shared: int
    loads: dict[int, int]
    tensor_core: str | None
    asm: dict[str, str] = field(repr=False, compare=False)


def why_not() -> str | None:
    """Why this process cannot compile, or None if it can."""
    try:
        import triton
    except ImportError:
        return "Triton is not installed. It exists for Linux only (pip install triton): elsewhere, use a container."
    if triton.knobs.runtime.interpret:
        return "TRITON_INTERPRET is set, so Triton interprets its kernels: unset it, in a new process, to compile them."
    return None


def compile_kernel(
    name: str,
    arch: str,
    head_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    block_size: int = 16,
    group: int = 4,
    query_len: int = 512,
    window: int | None = None,
    softcap: float | None = None,
) -> list[Compiled]:
    """Compile what the wrapper `name` launches, for 8 key/value heads with `group` query heads each.

    query_len, window and softcap matter to paged_attention alone. Raises RuntimeError where `why_not` has a reason, and
    ValueError for a name or arch that is not known.
    """
    if reason := why_not():
        raise RuntimeError(reason)
    if name not in NAMES or arch not in ARCHS:
        raise ValueError(f"got kernel {name} and arch {arch}, known are {NAMES} and {ARCHS}")

    def call_wrapper() -> None:
        from minibatcher_kernels.kv_write import kv_write
        from minibatcher_kernels.paged_attention import paged_attention
        from minibatcher_kernels.paged_decode import paged_decode
        from minibatcher_kernels.paged_decode_naive import paged_decode_naive
        from minibatcher_kernels.paged_decode_split import paged_decode_split

        seqs, kv_heads = 16, 8
        cache = torch.empty(1024, block_size, kv_heads, head_dim, dtype=dtype, device="meta")
        query = torch.empty(seqs, kv_heads * group, head_dim, dtype=dtype, device="meta")
        new = torch.empty(seqs, kv_heads, head_dim, dtype=dtype, device="meta")
        tables, lens, cu_seqlens, slots = (
            torch.empty(shape, dtype=torch.int32, device="meta") for shape in ((seqs, 256), seqs, seqs + 1, seqs)
        )
        decode = (query, cache, cache, tables, lens)
        scale = head_dim**-0.5
        if name == "kv_write":
            kv_write(new, new, cache, cache, slots)
        elif name == "paged_decode_naive":
            paged_decode_naive(*decode, scale)
        elif name == "paged_decode":
            paged_decode(*decode, scale)
        elif name == "paged_decode_split":
            paged_decode_split(*decode, scale, num_splits=16)
        else:
            paged_attention(*decode, cu_seqlens, scale, window, softcap, max_query_len=query_len)

    from triton.backends.compiler import GPUTarget

    from minibatcher_kernels import checks

    target = GPUTarget("cuda", int(arch[3:]), 32) if arch.startswith("sm_") else GPUTarget("hip", arch, 64)
    with patch.object(checks, "gpu_target", lambda: target):  # the wrapper's choices depend on the GPU
        launches = record_launches(call_wrapper)
    return [compile_launch(launch, arch, target) for launch in launches]


@dataclass(frozen=True)
class Launch:
    """A kernel and what it was launched with."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def record_launches(call: Callable[[], None]) -> list[Launch]:
    """What `call` launches, without launching it."""
    from triton.runtime.jit import JITFunction

    launches: list[Launch] = []

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(Launch(kernel, args, kwargs))

    with patch.object(JITFunction, "run", record):
        call()
    return launches


def compile_launch(launch: Launch, arch: str, target: Any) -> Compiled:
    """Compile a recorded launch, specialised as Triton does at a real one.

    A number that is 1 becomes a constant. Pointers (tensors start at multiples of 16 bytes) and numbers that 16 divides
    are marked so; without this mark no load would be known to be aligned, and all would be narrow.
    """
    import triton
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    values = dict(zip(names, launch.args, strict=False)) | launch.kwargs
    signature, constants, attributes = {}, {}, {}
    for index, (parameter, name) in enumerate(zip(launch.kernel.params, names, strict=True)):
        value = values[name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[name] = TRITON_TYPES[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, Tensor) or (signature[name] == "i32" and value % 16 == 0):
            attributes[(index,)] = [["tt.divisibility", 16]]

    options = {key: value for key, value in launch.kwargs.items() if key not in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton announces changes of its defaults
        binary = triton.compile(
            ASTSource(launch.kernel, signature, constexprs=constants, attrs=attributes), target=target, options=options
        )
    asm = {stage: text for stage, text in binary.asm.items() if isinstance(text, str)}
    facts = read_cubin(binary.asm["cubin"], asm) if target.backend == "cuda" else read_amdgcn(asm["amdgcn"])
    return Compiled(
        kernel=launch.kernel.__name__,
        arch=arch,
        num_warps=binary.metadata.num_warps,
        shared=binary.metadata.shared,
        asm=asm,
        **facts,
    )


def read_cubin(cubin: bytes, asm: dict[str, str]) -> dict[str, Any]:
    """Registers, spills, loads and tensor-core instructions of an NVIDIA binary; adds its machine code to asm."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage, asm["sass"] = (
            subprocess.run(
                [knobs.nvidia.cuobjdump.path, what, file.name], capture_output=True, text=True, check=True
            ).stdout
            for what in ("-res-usage", "-sass")
        )
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    # LDG loads to registers, LDGSTS straight to shared memory without waiting: the loads of a pipeline.
    loads = Counter(sass_width(load) for load in re.findall(r"\bLDG(?:STS)?\.E[\w.]*", asm["sass"]))
    products = Counter(re.findall(r"\b(?:HMMA|HGMMA|UTCHMMA)[\w.]*", asm["sass"]))
    return {
        "registers": int(registers),
        "spills": int(stack),
        "loads": dict(loads),
        "tensor_core": products.most_common(1)[0][0] if products else None,
    }


def sass_width(load: str) -> int:
    """Bytes that each thread loads with this instruction, from its name: LDG.E.128 is 16, plain LDG.E is 4."""
    parts = load.split(".")
    return next((width for suffix, width in SASS_WIDTHS.items() if suffix in parts), 4)


SASS_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
AMD_WIDTHS = {"dwordx4": 16, "dwordx3": 12, "dwordx2": 8, "dword": 4}


def read_amdgcn(text: str) -> dict[str, Any]:
    """The same of AMD assembly, which carries the figures in its own metadata."""
    products = Counter(re.findall(r"\bv_mfma\w+", text))
    loads = Counter(AMD_WIDTHS.get(width, 2) for width in re.findall(r"\b(?:global|buffer)_load_(\w+)", text))
    return {
        "registers": int(re.search(r"\.vgpr_count:\s*(\d+)", text).group(1)),
        "spills": int(re.search(r"\.private_segment_fixed_size:\s*(\d+)", text).group(1)),
        "loads": dict(loads),
        "tensor_core": products.most_common(1)[0][0] if products else None,
    }


def table(rows: list[Compiled]) -> str:
    """The facts as aligned text, one kernel a line."""
    lines = [("kernel", "arch", "warps", "registers", "spills", "shared", "loads", "tensor core")]
    for row in rows:
        loads = ", ".join(f"{count} x {width} B" for width, count in sorted(row.loads.items(), reverse=True))
        figures = (str(figure) for figure in (row.num_warps, row.registers, row.spills, row.shared))
        lines.append((row.kernel, row.arch, *figures, loads, row.tensor_core or "no"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="minibatcher_kernels.compiled", description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=(*NAMES, "all"), help="the kernel's wrapper, or all of them")
    parser.add_argument("--arch", choices=ARCHS, default="sm_90", help="A100: sm_80, H100: sm_90, B200: sm_100")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--block-size", type=int, default=16, help="tokens in a block of the pool")
    parser.add_argument("--group", type=int, default=4, help="query heads for each key/value head")
    parser.add_argument("--query-len", type=int, default=512, help="longest chunk (paged_attention); 1 for a decode")
    parser.add_argument("--window", type=int, help="sliding window in tokens (paged_attention)")
    parser.add_argument("--softcap", type=float, help="soft cap of the scores (paged_attention)")
    parser.add_argument("--show", choices=("ttir", "ttgir", "ptx", "sass", "amdgcn"), help="print the code as well")
    options = vars(parser.parse_args())
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    name, show, dtype = options.pop("name"), options.pop("show"), DTYPES[options.pop("dtype")]
    try:
        rows = [row for each in NAMES if name in (each, "all") for row in compile_kernel(each, dtype=dtype, **options)]
    except (ValueError, TypeError) as error:
        print(error, file=sys.stderr)
        return 2
    for row in rows if show else ():
        print(row.asm.get(show, f"{row.kernel} has no {show} on {row.arch}, only {', '.join(row.asm)}"))
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
