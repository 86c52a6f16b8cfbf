"""A rehearsal of what only a GPU can do for real: the benchmark and the check run here on a CPU, on tiny shapes.

The figures mean nothing. That every line runs, that wrong answers are noticed, and that the tables come out, does.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("there is a GPU: run kernels/gpu_check.py itself", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")

from minibatcher_kernels import bench, gpu_check, paged_decode

KERNELS = Path(bench.__file__).parent
TINY = bench.Shape(torch.device("cpu"), dtype=torch.float16, num_heads=4, num_kv_heads=2, head_dim=32)
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def test_the_benchmark_runs_from_end_to_end(monkeypatch):
    monkeypatch.setattr(bench, "DECODE_BARS", {(2, 256): ("split", 0.0), (1, 128): ("paged_attention", 1e9)})
    report = bench.run(TINY, decodes=((2, 256), (1, 128)), prefill=(2, 16, 128), copy_bytes=2**12)
    text = bench.markdown(report)
    assert report.notes == []
    assert [row[0] for row in report.decodes] == ["(2, 256)", "(1, 128)"]
    assert all(len(row) == 2 + len(bench.DECODE_WAYS) and "-" not in row for row in report.decodes)
    assert len(report.prefills) == 1 and len(report.bars) == 5
    assert report.bars[0] == (report.bars[0][0], True) and report.bars[2] == (report.bars[2][0], False)
    assert "| bar" in text and "| NO" in text and "(2, 256)" in text


def test_a_wrong_answer_is_not_timed(monkeypatch):
    monkeypatch.setattr(bench, "paged_decode", lambda *args: 2 * paged_decode.paged_decode(*args))
    with pytest.raises(RuntimeError, match="decode is wrong: relative error"):
        bench.run(TINY, decodes=((1, 128),), copy_bytes=2**12)


def test_what_pytorch_cannot_do_here_is_noted_and_the_rest_goes_on(monkeypatch):
    def fail(*args, **kwargs):
        raise NotImplementedError("no compiler\nfound")

    monkeypatch.setattr(bench, "flex_attention", fail)
    report = bench.run(TINY, decodes=((1, 128),), prefill=(1, 16, 128), copy_bytes=2**12)
    assert report.notes == ["flex at (1, 128) failed: NotImplementedError: no compiler found"]
    assert report.decodes[0][-1] == "-" and len(report.prefills) == 1


def test_a_case_too_large_for_the_gpu_is_left_out(monkeypatch):
    def fail(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench, "make_pools", fail)
    report = bench.run(TINY, decodes=((1, 128),), prefill=(1, 16, 128), copy_bytes=2**12)
    assert report.notes == [
        "bench_decode(1, 128) does not fit this GPU's memory",
        "bench_prefill(1, 16, 128) does not fit this GPU's memory",
    ]
    assert "Note: bench_decode" in bench.markdown(report)


def test_pools_overflow_the_cache():
    pools = bench.make_pools(replace(TINY, block_size=16), num_seqs=2, query_len=1, context=64)
    assert len(pools) == 1 and pools[0].block_tables.flatten().sort().values.tolist() == list(range(8))


def test_the_check_compares_every_kernel(monkeypatch):
    shapes = ((1, 2, 32, 16, 40, 5.0),)  # as in gpu_check.SHAPES
    rows = gpu_check.correctness("cpu", shapes, {"float32": 1e-3}, longest=100)
    assert len(rows) == 6 and all(row[-1] == "yes" for row in rows)
    text = gpu_check.results("no GPU", rows, "passed", "tables")
    assert "- Device: no GPU" in text and f"torch {torch.__version__}" in text and text.count("| yes") == 6

    from minibatcher_kernels import paged_decode as module

    monkeypatch.setattr(module, "paged_decode", lambda *args, **kwargs: torch.full_like(kwargs["query"], torch.nan))
    rows = gpu_check.correctness("cpu", shapes, {"float32": 1e-3}, longest=100)
    assert [row[0] for row in rows if row[-1] == "NO"] == ["paged_decode"]


def test_without_a_gpu_they_say_what_they_need(tmp_path, capsys):
    assert bench.main() == 2 and "needs a GPU" in capsys.readouterr().err
    # As a file, from any folder.
    done = subprocess.run([sys.executable, KERNELS / "gpu_check.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "needs an NVIDIA GPU" in done.stderr and done.stdout == ""
