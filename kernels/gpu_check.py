"""One command for a person with an NVIDIA GPU: are the kernels right, and how fast are they?

    python kernels/gpu_check.py

It needs no installation and no network: torch, triton, transformers and pytest must be there, and the project is put on
the path here. In under five minutes it compares every kernel with the specification in float64 on random batches, runs
the test suite's GPU part, runs `bench.py`, prints a table last, and writes it to `kernels/RESULTS.md`.

Exit code 0: all right and every bar met. 1: something is wrong, or a bar was missed. 2: it cannot run here.
"""

from __future__ import annotations

import datetime
import importlib.util
import platform
import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

KERNELS = Path(__file__).resolve().parent
PROJECT = KERNELS.parent
RESULTS = KERNELS / "RESULTS.md"
NEEDS = ("torch", "triton", "transformers", "pytest")
TOLERANCES = {"float32": 1e-3, "bfloat16": 1e-2}
# (key/value heads, query heads for each, head size, block size, window, soft cap); the lengths are drawn at random.
SHAPES = (
    (8, 4, 128, 16, None, None),
    (2, 3, 64, 32, 300, None),
    (1, 8, 80, 64, None, 5.0),
    (2, 1, 256, 16, 40, 5.0),
)


def put_project_on_path() -> None:
    """Make `minibatcher` and `minibatcher_kernels` importable from this checkout, installed or not."""
    # Python put this folder first: its bench.py or reference.py must not be taken for someone else's module.
    sys.path[:] = [str(PROJECT), *(entry for entry in sys.path if Path(entry or ".").resolve() != KERNELS)]
    package = ModuleType("minibatcher_kernels")
    package.__path__ = [str(KERNELS)]
    sys.modules["minibatcher_kernels"] = package


def why_not() -> str | None:
    """Why the check cannot run here, or None if it can."""
    if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        return f"It needs the packages {', '.join(NEEDS)}; not found: {', '.join(missing)}."
    import torch

    if not torch.cuda.is_available():
        return (
            "It needs an NVIDIA GPU (compute capability 8.0 or newer), and PyTorch sees none here. Without one, "
            "`python -m pytest tests/test_kernels.py` runs the kernels in Triton's interpreter, and "
            "`python -m minibatcher_kernels.compiled all` compiles them for a GPU that is not there."
        )
    if torch.cuda.get_device_capability() < (8, 0):
        return f"It needs compute capability 8.0 or newer; {torch.cuda.get_device_name()} is too old for Triton."
    import triton

    if triton.knobs.runtime.interpret:
        return "TRITON_INTERPRET is set, so kernels would be interpreted: unset it and run this again."
    return None


def errors(device: str, dtype_name: str, shape: tuple, seed: int, longest: int) -> Iterator[tuple[str, float]]:
    """Each kernel on one random batch: its name, and its greatest error over the greatest value of the answer."""
    import torch

    from minibatcher_kernels.kv_write import kv_write
    from minibatcher_kernels.paged_attention import paged_attention
    from minibatcher_kernels.paged_decode import paged_decode
    from minibatcher_kernels.paged_decode_naive import paged_decode_naive
    from minibatcher_kernels.paged_decode_split import paged_decode_split
    from minibatcher_kernels.problem import random_problem

    def error(out: torch.Tensor, answer: torch.Tensor) -> float:
        return ((out.double() - answer).abs().max() / answer.abs().max().clamp(min=1e-9)).item()

    num_kv_heads, group, head_dim, block_size, window, softcap = shape
    draw = random.Random(seed)
    contexts = [0, 1, *(draw.randint(2, longest) for _ in range(6))]
    make = partial(
        random_problem,
        contexts,
        num_kv_heads=num_kv_heads,
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        shared_blocks=2,
        dtype=getattr(torch, dtype_name),
        device=device,
        seed=seed,
    )
    decode = make()
    arguments = {name: value for name, value in vars(decode).items() if name != "cu_seqlens_q"}
    answer = decode.answer()
    yield "paged_decode_naive", error(paged_decode_naive(**arguments), answer)
    yield "paged_decode", error(paged_decode(**arguments), answer)
    yield "paged_decode_split", error(paged_decode_split(**arguments, num_splits=5), answer)
    yield "paged_attention, decodes", error(paged_attention(**vars(decode), max_query_len=1), answer)

    chunks = [1 if draw.random() < 0.3 else draw.randint(0, context) for context in contexts]
    mixed = make(chunks)
    out = paged_attention(**vars(mixed), window=window, softcap=softcap, max_query_len=max(chunks))
    yield "paged_attention, mixed", error(out, mixed.answer(window, softcap))

    key_cache, value_cache = decode.key_cache.clone(), decode.value_cache.clone()
    new = torch.randn(2, 50, *key_cache.shape[2:], device=device).to(key_cache.dtype)
    slots = torch.randperm(key_cache.shape[0] * key_cache.shape[1], device=device)[:50]
    slots[-1] = -1
    kv_write(new[0], new[1], key_cache, value_cache, slots)
    written = torch.stack([cache.flatten(0, 1)[slots[:-1]] for cache in (key_cache, value_cache)])
    yield "kv_write", error(written, new[:, :-1].double())


def correctness(
    device: str, shapes: tuple = SHAPES, tolerances: dict[str, float] = TOLERANCES, longest: int = 1500
) -> list[tuple[str, ...]]:
    """The worst error of each kernel and type over all shapes, contexts up to `longest`, as rows of a table."""
    worst: dict[tuple[str, str], float] = {}
    for dtype_name in tolerances:
        for seed, shape in enumerate(shapes):
            for kernel, error in errors(device, dtype_name, shape, seed, longest):
                so_far = worst.get((kernel, dtype_name), 0.0)
                worst[kernel, dtype_name] = so_far if error <= so_far else error  # max() would lose a NaN
    return [
        (kernel, name, f"{error:.1e}", f"{tolerances[name]:.0e}", "yes" if error <= tolerances[name] else "NO")
        for (kernel, name), error in worst.items()
    ]


def results(device_name: str, rows: list[tuple[str, ...]], tests: str, measured: str) -> str:
    """The text of RESULTS.md."""
    import torch
    import transformers
    import triton

    from minibatcher_kernels.bench import table

    return "\n".join(
        [
            "# What the kernels reach",
            "",
            "Written by `python kernels/gpu_check.py`.",
            "",
            f"- Device: {device_name}",
            f"- Versions: torch {torch.__version__} (CUDA {torch.version.cuda}), triton {triton.__version__}, "
            f"transformers {transformers.__version__}, Python {platform.python_version()}",
            f"- Date: {datetime.date.today().isoformat()}",
            f"- The test suite's GPU part: {tests}",
            "",
            *table([("kernel", "type", "relative error", "allowed", "right"), *rows]),
            "",
            measured,
            "",
        ]
    )


def main() -> int:
    put_project_on_path()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    import pytest
    import torch

    from minibatcher_kernels import bench

    start = time.monotonic()
    print("1 of 3: every kernel against the specification in float64 ...", flush=True)
    rows = correctness("cuda")
    print(f"2 of 3: the test suite's GPU part, after {time.monotonic() - start:.0f} s ...", flush=True)
    # Without conftest.py and the cache: no further packages, and nothing is left behind.
    options = ["-q", "--noconftest", "-p", "no:cacheprovider"]
    tests = "passed" if pytest.main([*options, str(PROJECT / "tests" / "test_kernels_gpu.py")]) == 0 else "FAILED"
    print(f"3 of 3: the benchmark, after {time.monotonic() - start:.0f} s ...", flush=True)
    report = bench.run(bench.Shape(torch.device("cuda")))

    text = results(torch.cuda.get_device_name(), rows, tests, bench.markdown(report))
    RESULTS.write_text(text)
    print(f"Done after {time.monotonic() - start:.0f} s; written to {RESULTS}.\n\n{text}")
    right = tests == "passed" and all(row[-1] == "yes" for row in rows)
    return 0 if right and all(met for _, met in report.bars) else 1


if __name__ == "__main__":
    sys.exit(main())
