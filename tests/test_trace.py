"""A trace goes out and comes in without loss, and refuses what is none."""

from __future__ import annotations

import pytest
from stub import engine, request

from minibatcher import Trace


@pytest.mark.parametrize("stage", ["static", "iteration"])
def test_json_lines_out_and_in(stage, tmp_path):
    eng = engine(stage, max_num_seqs=2, max_wait_s=1.0) if stage == "static" else engine(stage, max_num_seqs=2)
    eng.scheduler.eos_token_ids = frozenset({12})
    trace = eng.run([request(f"é{i}", prompt=1 + i, max_tokens=1 + i, arrival=i / 3) for i in range(6)])
    trace.save(tmp_path / "t.jsonl")
    again = Trace.load(tmp_path / "t.jsonl")
    assert again == trace and again.records == trace.records and again.meta == trace.meta
    assert type(again[0].work[0]) is type(trace[0].work[0]) and again[0].work[0].kind == "prefill"
    lines = (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + len(trace)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "empty"),
        ("not json\n", "line 1"),
        ("[]\n", "line 1"),
        ('{"schema": 99}\n', "line 1.*schema 99"),
        ('{"schema": 1}\n{"step": 0}\n{"unknown": 3}\n', "line 3"),
        ('{"schema": 1}\n{"work": [[1]]}\n', "line 2"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_line(text, line, tmp_path):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ValueError, match=line):
        Trace.load(tmp_path / "t.jsonl")
