"""What the compiler makes of the kernels for GPUs that are not here: registers, spills, loads, tensor cores."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (it exists for Linux only)"
)

# One process compiles everything: it must not interpret, and importing torch takes as long as several kernels.
COMPILE_ALL = """
import json, sys
from dataclasses import asdict
from minibatcher_kernels.compiled import DTYPES, NAMES, compile_kernel

rows = []
for arch, name, dtype, choices in json.loads(sys.stdin.read()):
    for row in compile_kernel(name, arch, dtype=DTYPES[dtype], **choices):
        facts = asdict(row) | {"asm": sorted(row.asm)}
        rows.append(facts | {"name": name, "dtype": dtype, "choices": choices})
print(json.dumps(rows))
"""
NAMES = ("kv_write", "paged_decode_naive", "paged_decode", "paged_decode_split", "paged_attention")
# The unified kernel's tiles depend on the longest chunk: 16, 32, 64 and 128 rows.
UNIFIED = [
    *({"query_len": length} for length in (1, 8, 16)),
    *({"window": window, "softcap": softcap} for window, softcap in ((None, 50.0), (1024, 50.0))),
]
CASES = [
    *((arch, name, "bfloat16", {}) for arch in ("sm_80", "sm_90", "sm_100", "gfx942") for name in NAMES),
    *((arch, "paged_attention", "float16", {}) for arch in ("sm_80", "sm_90")),
    *((arch, "paged_attention", "bfloat16", choices) for arch in ("sm_80", "sm_90") for choices in UNIFIED),
    *(("sm_80", "paged_attention", "bfloat16", {"head_dim": head_dim}) for head_dim in (80, 256)),
    ("sm_80", "paged_attention", "float32", {}),
]


def without_interpreter() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}


@pytest.fixture(scope="module")
def rows():
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_ALL],
        input=json.dumps(CASES),
        env=without_interpreter(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kernel_compiles_for_every_gpu(rows):
    made = {(row["kernel"], row["arch"]) for row in rows}
    kernels = {f"{name}_kernel" for name in NAMES} | {"reduce_splits_kernel"}
    assert made == {(kernel, arch) for kernel in kernels for arch in ("sm_80", "sm_90", "sm_100", "gfx942")}


def test_nothing_spills_on_sm_80_and_sm_90_at_head_size_128(rows):
    of_interest = [
        row
        for row in rows
        if row["arch"] in ("sm_80", "sm_90")
        and row["dtype"] != "float32"
        and row["choices"].get("head_dim", 128) == 128
    ]
    assert len(of_interest) > 20
    assert [row for row in of_interest if row["spills"]] == []


def test_keys_and_values_are_loaded_16_bytes_at_a_time(rows):
    for row in rows:
        if row["kernel"].startswith("paged"):
            total = sum(int(width) * count for width, count in row["loads"].items())
            assert 16 * row["loads"].get("16", 0) > total / 2, row


def test_attention_uses_tensor_cores(rows):
    instruction = {"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA", "gfx942": "v_mfma"}
    for row in rows:
        if row["kernel"] == "paged_attention_kernel" and row["dtype"] != "float32" and not row["choices"]:
            assert row["tensor_core"].startswith(instruction[row["arch"]]), row
        if row["kernel"] in ("paged_decode_kernel", "paged_decode_split_kernel"):
            assert row["tensor_core"] is not None, row
        if row["kernel"] in ("kv_write_kernel", "paged_decode_naive_kernel"):
            assert row["tensor_core"] is None


def test_shared_memory_fits_the_smallest_gpu_of_each_kind(rows):
    """99 KiB for a program on consumer GPUs, which run what sm_80 does; 227 KiB on H100 and B200; 64 KiB on MI300."""
    limit = {"sm_80": 99, "sm_90": 227, "sm_100": 227, "gfx942": 64}
    assert [row for row in rows if row["shared"] > limit[row["arch"]] * 1024] == []


def command(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "minibatcher_kernels.compiled", *args],
        env=without_interpreter(),
        capture_output=True,
        text=True,
    )


def test_the_command_prints_a_table_and_the_code(rows):
    done = command("paged_decode_split", "--arch", "sm_90", "--show", "ptx")
    assert done.returncode == 0, done.stderr
    assert ".entry paged_decode_split_kernel" in done.stdout and ".entry reduce_splits_kernel" in done.stdout
    head, first, second = done.stdout.splitlines()[-3:]
    assert head.split()[:6] == ["kernel", "arch", "warps", "registers", "spills", "shared"]
    assert first.startswith("paged_decode_split_kernel  sm_90  4") and second.startswith("reduce_splits_kernel")


def test_the_command_explains_a_size_that_no_kernel_supports():
    done = command("paged_decode", "--head-dim", "512")
    assert done.returncode == 2 and "head_dim is 512, allowed are 32 to 256" in done.stderr


def test_the_command_refuses_where_it_cannot_compile(monkeypatch, capsys):
    from minibatcher_kernels.compiled import compile_kernel, main

    monkeypatch.setattr(sys, "argv", ["compiled", "all"])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert main() == 2 and "TRITON_INTERPRET is set" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set"):
        compile_kernel("paged_decode", "sm_90")
    monkeypatch.setitem(sys.modules, "triton", None)
    assert main() == 2 and "Triton is not installed" in capsys.readouterr().err
