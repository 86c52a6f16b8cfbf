"""The demo: one set of chat prompts, answered at every stage, live; then a table, answers and pictures."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from minibatcher.llm import LLM, RequestOutput
from minibatcher.measure.fit import Length, how_many_fit
from minibatcher.measure.metrics import requests, summary
from minibatcher.request import SamplingParams
from minibatcher.stages import STAGES, settings_for
from minibatcher.trace import StepRecord, Trace
from minibatcher.views.text import render, render_rich


def prompts() -> list[dict]:
    """16 chat prompts: {"prompt": text, "max_tokens": length of the answer at most}."""
    return json.loads((files("minibatcher") / "measure" / "prompts.json").read_text(encoding="utf-8"))


def run(console: Console, model: str, out: Path, lanes: int, stages: list[str] | None = None) -> int:
    """stages: stages 1 to 4 if none is given, the fourth where its kernel can run.

    Returns the exit code: 1 if two stages gave different answers.
    """
    for stage in stages or ():
        settings_for(stage, {})  # refuses one that does not exist
    from minibatcher.model.backend import choose
    from minibatcher.model.load import load

    questions = prompts()
    out.mkdir(parents=True, exist_ok=True)  # now, and not after minutes, should that be impossible
    with console.status(f"Loading the model {model} (the first time takes half a minute)"):
        loaded = load(model)
    console.print(f"Model [bold]{loaded.name}[/] from {loaded.source}, on {loaded.model.device}, {loaded.model.dtype}.")
    console.print(f"{len(questions)} questions, {lanes} lanes. All of them arrive at once.\n")

    answers: dict[str, list[RequestOutput]] = {}
    traces: dict[str, Trace] = {}
    if not stages:
        stages = ["static", "iteration", "paged", "kernel"]
        backend, why = choose("auto", loaded.model.device, loaded.layers)
        if backend != "triton":
            stages.remove("kernel")
            console.print(f"Stage kernel is left out: {why}.\n")
    for stage in stages:
        llm = LLM(loaded, stage=stage, max_num_seqs=lanes, max_model_len=512)
        answers[stage], traces[stage] = ask(console, llm, questions), llm.trace
        llm.close()
        console.print(f"[bold]{stage}[/]: {STAGES[stage].decides}; keys and values in {STAGES[stage].keeps}")
        width = console.width - 10
        console.print(render(traces[stage].records[:width], width), highlight=False, soft_wrap=True)
        if (left := len(traces[stage]) - width) > 0:
            console.print(f"(and {left} steps more, all of them in {out / stage}.jsonl)", markup=False)
        console.print()

    console.print(table(traces))
    console.print("TTFT: time to first token. ITL: gap between tokens of an answer. Row-step: one lane in one step.")
    same = agree(console, questions, answers)
    console.print()
    console.print("What paging changes is not the steps but the memory:\n")
    console.print(memory_table(traces[stage]))
    console.print(
        "A range is room in one piece: for max_model_len, for the next power of two, for max_tokens, or for the true "
        "length that only an oracle knows. Blocks for max_tokens only avoid the holes between ranges, which is a "
        "modest gain. Blocks on demand reserve nothing: that is the large one, and its price is preemptions, where "
        "the pool runs out."
    )
    for number in (0, 2):
        console.print(f"\n[bold]{questions[number]['prompt']}[/]")
        console.print(answers[stage][number].text, markup=False, highlight=False)
    write(console, traces, out)
    return 0 if same else 1


def ask(console: Console, llm: LLM, questions: list[dict]) -> list[RequestOutput]:
    """Answer all questions, with a progress bar and the timeline of the last steps."""
    stage = llm.trace.meta["stage"]
    lanes = llm.trace.meta["settings"]["max_num_seqs"]
    progress = Progress(
        TextColumn(f"[bold]{stage:<10}"), BarColumn(), MofNCompleteColumn(), TextColumn("answers"), TimeElapsedColumn()
    )
    task = progress.add_task(stage, total=len(questions))
    recent: list[StepRecord] = []
    width = console.width - 10

    with Live(console=console, transient=True, refresh_per_second=8) as live:

        def show(record: StepRecord) -> None:
            recent.append(record)
            del recent[:-width]
            progress.advance(task, len(record.finished))
            live.update(Group(progress, render_rich(recent, width, lanes)))

        llm.trace.listeners.append(show)
        ids = [llm.chat_prompt([{"role": "user", "content": question["prompt"]}]) for question in questions]
        params = [SamplingParams(max_tokens=question["max_tokens"], temperature=0) for question in questions]
        return llm.generate(ids, params)


def table(traces: dict[str, Trace]) -> Table:
    """One column a stage."""
    figures = {stage: summary(trace) for stage, trace in traces.items()}
    rows = [
        ("seconds", [f"{s.seconds:.1f}" for s in figures.values()]),
        ("output tokens/s", [f"{s.output_tokens_per_s:.1f}" for s in figures.values()]),
        ("output tokens", [f"{s.output_tokens}" for s in figures.values()]),
        ("steps", [f"{s.steps}" for s in figures.values()]),
        ("useful row-steps", [f"{s.useful_row_steps}" for s in figures.values()]),
        ("wasted row-steps", [f"{s.wasted_row_steps}" for s in figures.values()]),
        ("TTFT p50 (s)", [f"{s.ttft.p50:.2f}" for s in figures.values()]),
        ("TTFT p95 (s)", [f"{s.ttft.p95:.2f}" for s in figures.values()]),
        ("ITL p95 (ms)", [f"{1000 * (s.itl.p95 or 0):.0f}" for s in figures.values()]),
        ("lanes busy, mean", [f"{s.mean_lanes_busy:.1f}" for s in figures.values()]),
        ("lanes useful, mean", [f"{s.mean_lanes_useful:.1f}" for s in figures.values()]),
    ]
    out = Table()
    out.add_column("", no_wrap=True)
    for stage in traces:
        out.add_column(stage, justify="right")
    for name, cells in rows:
        out.add_row(name, *cells)
    return out


def memory_table(trace: Trace) -> Table:
    """How many of the run's requests fit at once in a pool of 1,024 tokens, for each way of keeping them."""
    lengths = [
        Length(arrival.prompt_tokens, arrival.max_tokens, requests(trace)[arrival.id].output_tokens)
        for record in trace
        for arrival in record.arrived
    ]
    longest = max(256, *(length.prompt + length.max_tokens for length in lengths))
    out = Table(title=f"How many run at once in a pool of 1,024 tokens\n(64 blocks of 16; max_model_len {longest})")
    out.add_column("kept in", no_wrap=True)
    for column in ("first step", "mean", "steps", "preemptions"):
        out.add_column(column, justify="right")
    for way, fit in how_many_fit(lengths, max_model_len=longest).items():
        out.add_row(way, str(fit.first), f"{fit.mean:.1f}", str(fit.steps), str(fit.preemptions))
    return out


def agree(console: Console, questions: list[dict], answers: dict[str, list[RequestOutput]]) -> bool:
    """Say whether all stages gave the same answers; they must, for batching changes when work is done, not what."""
    first, *others = answers
    different = {
        number
        for stage in others
        for number, (one, other) in enumerate(zip(answers[first], answers[stage], strict=True))
        if one.token_ids != other.token_ids
    }
    if not different:
        console.print(f"The {len(questions)} answers are the same, token for token, at: {', '.join(answers)}.")
        return True
    console.print(f"[bold red]The answers to {len(different)} questions differ between stages:[/]")
    for number in sorted(different):
        console.print(f"  {questions[number]['prompt']}", markup=False)
        for stage, given in answers.items():
            console.print(f"    {stage}: {given[number].text!r}", markup=False)
    return False


def write(console: Console, traces: dict[str, Trace], out: Path) -> None:
    from minibatcher.views import figure, perfetto

    picture = out / "timeline.png"
    first, *others = traces.values()
    (figure.compare(first, others[0]) if others else figure.draw(first)).savefig(picture, dpi=150)
    drawn = " and ".join(list(traces)[:2])
    console.print(f"\nThe timeline of {drawn}: {picture}", markup=False)
    for stage, trace in traces.items():
        trace.save(out / f"{stage}.jsonl")
        perfetto.to_perfetto(trace, out / f"{stage}.perfetto.json")
    stages = "{" + ",".join(traces) + "}" if len(traces) > 1 else next(iter(traces))
    console.print(f"The traces (JSON Lines): {out}/{stages}.jsonl", markup=False)
    console.print(f"To zoom in, open https://ui.perfetto.dev and load {out}/{stages}.perfetto.json", markup=False)
