"""What this machine has for the course, and what to do about each thing that is missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys

from rich.console import Console
from rich.table import Table

Finding = tuple[str, str, str]  # what, what was found, what to do ("" if nothing)


def run(console: Console) -> int:
    """Print the findings. Returns the exit code: 1 when something that every stage needs is missing."""
    findings = examine()
    table = Table(show_lines=False)
    for column in ("", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(*finding)
    console.print(table)
    missing = [what for what, found, _ in findings if found == "missing"]
    console.print(f"Missing: {', '.join(missing)}." if missing else "Everything the stages need is here.")
    return 1 if missing else 0


def examine() -> list[Finding]:
    findings: list[Finding] = [("python", platform.python_version(), _python())]
    findings.append(package("torch", "pip install 'torch>=2.11,<2.14'"))
    findings.append(package("transformers", "pip install 'transformers>=5.17'"))
    findings.append(triton())
    if findings[1][1] != "missing":
        findings += [device(), threads()]
    if "missing" not in (findings[1][1], findings[2][1]):
        findings += [attention(), model(), pool()]
    return findings


def _python() -> str:
    return "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer"


def package(name: str, remedy: str) -> Finding:
    try:
        return name, importlib.metadata.version(name), ""
    except importlib.metadata.PackageNotFoundError:
        return name, "missing", remedy


def triton() -> Finding:
    name, found, _ = package("triton", "")
    if found != "missing":
        return name, found, ""
    if sys.platform == "linux":
        return name, "not installed", "pip install triton (for stage 4 only)"
    return name, f"does not exist for {sys.platform}", "nothing: PyTorch serves in its place"


def device() -> Finding:
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return "device", f"GPU: {properties.name}, {properties.total_memory / 2**30:.0f} GiB", ""
    return "device", "CPU: everything works; real GPU times need a GPU", ""


def threads() -> Finding:
    import torch

    count, cores = torch.get_num_threads(), os.cpu_count() or 1
    remedy = ""
    if count >= cores > 1:
        remedy = "if other programs run too, set OMP_NUM_THREADS to half of the cores: waiting threads are slow"
    return "threads", f"{count} of {cores} cores", remedy


def attention() -> Finding:
    """Which backend stages 4 to 6 choose by themselves, and why."""
    import torch

    from minibatcher.model import backend

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name, why = backend.choose("auto", device)
    return "attention", f"{name}: {why}", ""


def pool() -> Finding:
    """The arithmetic of the pool, for smollm2 in the dtype that it would have here."""
    import torch

    from minibatcher.memory.pool import blocks_that_fit, bytes_per_token

    on_gpu = torch.cuda.is_available()
    dtype, device = (torch.bfloat16, torch.device("cuda")) if on_gpu else (torch.float32, torch.device("cpu"))
    layers, per_token = [(3, 64)] * 30, bytes_per_token([(3, 64)] * 30, dtype)
    blocks = blocks_that_fit(layers, dtype, device, 16, 0.9)
    found = (
        f"smollm2: 2 x 30 layers x 3 kv heads x 64 x {dtype.itemsize} bytes = {per_token:,} bytes per token; "
        f"{'0.9 of the GPU, less what is in use' if on_gpu else '1 GiB'} holds {blocks:,} blocks of 16 tokens"
    )
    return "pool", found, ""


def model() -> Finding:
    """Where smollm2 would come from, without loading or converting it."""
    from minibatcher.model import load

    try:
        return "model smollm2", load.where("smollm2"), ""
    except ValueError:
        return "model smollm2", "missing", load.TWO_WAYS


def use_threads(threads: int) -> None:
    """Half of the cores by default: two OpenMP threads that wait for a busy core can be ten times slower than one."""
    if threads or "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(threads or max(1, (os.cpu_count() or 2) // 2))
