"""The command line: `minibatcher demo | generate | bench | simulate | capacity | grade | doctor`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from minibatcher import simulate
from minibatcher.doctor import use_threads
from minibatcher.stages import DEFAULT_STAGE, STAGES

app = typer.Typer(
    help="Continuous batching of LLM inference, step by step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
console_of_errors = Console(stderr=True)  # what is not part of the answer

Model = Annotated[str, typer.Option(help="smollm2, tiny, a folder, or an id on the Hugging Face hub.")]
Threads = Annotated[int, typer.Option(min=0, help="CPU threads; 0 is half of the cores, or OMP_NUM_THREADS if set.")]


@app.command()
def demo(
    model: Model = "smollm2",
    out: Annotated[Path, typer.Option(help="Folder for the pictures and traces.")] = Path("out"),
    lanes: Annotated[int, typer.Option(min=1, help="Rows of the batch, at every stage.")] = 8,
    stage: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(STAGES)}; again for another. Without it, stages 1 to 4.")
    ] = None,
    threads: Threads = 0,
) -> None:
    """Answer the same 16 chat prompts at several stages, and compare."""
    use_threads(threads)
    from minibatcher import demo as show

    raise typer.Exit(show.run(console, model, out, lanes, stage))


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    model: Model = "smollm2",
    stage: Annotated[str, typer.Option(help=f"One of {', '.join(STAGES)}.")] = DEFAULT_STAGE,
    max_tokens: Annotated[int, typer.Option(help="Length of the answer, in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 always takes the most likely token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same answer.")] = None,
    raw: Annotated[bool, typer.Option(help="Continue the prompt as it is, without the chat template.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write the trace there, as JSON Lines.")] = None,
    threads: Threads = 0,
) -> None:
    """Answer one prompt, word by word."""
    use_threads(threads)
    from minibatcher.llm import LLM
    from minibatcher.request import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    if trace:
        trace.parent.mkdir(parents=True, exist_ok=True)
    llm = LLM(model, stage=stage)
    question = prompt if raw else llm.chat_prompt([{"role": "user", "content": prompt}])
    for piece in llm.stream(question, params):
        print(piece, end="", flush=True)
    print()
    if any(reason == "length" for _, reason in llm.trace[-1].finished):
        console_of_errors.print(f"(cut after {max_tokens} tokens; --max-tokens allows more)", style="dim")
    if trace:
        llm.trace.save(trace)


@app.command()
def bench(
    model: Model = "smollm2",
    only: Annotated[list[str] | None, typer.Option(help="One comparison (may be repeated), else all.")] = None,
    scheduler: Annotated[
        bool, typer.Option("--scheduler", help="Only what lies between two calls of the model; no model is needed.")
    ] = False,
    chunked: Annotated[
        bool, typer.Option("--chunked", help="Only the table of a long prompt that arrives among streams.")
    ] = False,
    simulator: Annotated[
        bool, typer.Option("--simulator", help="Only how many steps a second the engine makes on a modelled GPU.")
    ] = False,
    costs: Annotated[
        Path | None, typer.Option(help="Only a load on the model, its trace written there: for `simulate --fit`.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Rounds; the medians are printed.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything that was measured there.")] = None,
    clock: Annotated[str, typer.Option(help="wall; or cpu, for one thread on a busy machine.")] = "wall",
    threads: Threads = 0,
) -> None:
    """Measure the engine beside transformers and the bare model.

    Ten minutes on a quiet CPU; --scheduler: half a minute. All sides run in
    turn in one process, so other programs slow all of them: look at the ratios.

    For --only: throughput, bare, bare-600, uneven, memory, paged, preemption;
    with --scheduler: steady, changing, tensors-100, tensors-1000 and the like.
    """  # short lines: the help keeps them as they are
    use_threads(threads)
    from minibatcher.measure import report

    if clock not in report.CLOCKS:
        raise ValueError(f"--clock {clock} is unknown: choose from {', '.join(report.CLOCKS)}")
    report.Stopwatch.clock = clock
    if json_file:  # now, and not after minutes, should that be impossible
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.touch()
    if simulator:
        from minibatcher.measure.simulator import steps_per_second

        rates = [steps_per_second(32, clock=report.CLOCKS[clock]) for _ in range(seeds)]
        console.print(f"{median(rates):,.0f} engine steps/s with 32 requests running and no trace (the bar: 8,000).")
        if json_file:
            json_file.write_text(json.dumps({"about": report.machine(), "steps_per_s": rates}) + "\n", encoding="utf-8")
        return
    if costs:
        from minibatcher.measure import calibrate
        from minibatcher.measure.costs import CostModel

        costs.parent.mkdir(parents=True, exist_ok=True)
        with console.status("Serving 148 requests to 4, 6, 9 ... 16 clients (minutes on a CPU)"):
            trace = calibrate.measured(model, clock=calibrate.ProcessorClock() if clock == "cpu" else None)
        trace.save(costs)
        console.print(f"{len(trace)} steps in {costs}. Step times: {CostModel.fit(trace).trust}.", markup=False)
        return
    if scheduler:
        from minibatcher.measure import microbench

        comparisons, about = microbench.comparisons(), {"model": "a stub"}
    else:
        from minibatcher.measure import bench, stagebench
        from minibatcher.model.load import load

        loaded = load(model, device="cpu", dtype="float32")
        if chunked:
            stalls = stagebench.chunked(loaded)
            console.print(stagebench.stall_table(stalls))
            if json_file:
                found = {"about": report.machine(), "stalls": [asdict(stall) for stall in stalls]}
                json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            return
        comparisons = bench.comparisons(loaded) | stagebench.comparisons(loaded)
        about = {"model": loaded.name, "dtype": "float32", "clock": clock}
    unknown = set(only or ()) - comparisons.keys()
    if unknown:
        raise ValueError(f"--only {', '.join(sorted(unknown))} is unknown: choose from {', '.join(comparisons)}")
    chosen = {name: comparison for name, comparison in comparisons.items() if not only or name in only}
    found = report.run(console, chosen, seeds, about)
    if json_file:
        json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


@app.command()
def grade(
    what: Annotated[
        str | None, typer.Argument(help="A task (3.2) or an exercise (ex03); all, if it is left out.")
    ] = None,
    hint: Annotated[bool, typer.Option("--hint", help="One more hint for what fails first.")] = False,
    grade_json: Annotated[Path | None, typer.Option("--grade-json", "--json", help="Write the report there.")] = None,
    grade_format: Annotated[str, typer.Option(help="Of the report: plain or gradescope.")] = "plain",
    exercises: Annotated[Path | None, typer.Option(help="The folder with the exercises, if it is elsewhere.")] = None,
    submission: Annotated[Path | None, typer.Option(help="Grade the files in this folder instead.")] = None,
    release: Annotated[Path | None, typer.Option(help="Write what to hand out, and an autograder, there.")] = None,
) -> None:
    """Grade the exercises: a line a task, and the first failure in full. `minibatcher grade challenge` is unscored."""
    from minibatcher.grading import command

    raise typer.Exit(command.run(console, what, hint, grade_json, grade_format, exercises, submission, release))


app.command()(simulate.simulate)
app.command()(simulate.capacity)


@app.command()
def doctor() -> None:
    """Say what this machine has, and what to do about what is missing."""
    from minibatcher import doctor as examine

    raise typer.Exit(examine.run(console))


def main() -> None:
    """Bad use ends with exit code 2 and a sentence, not with a traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError) as error:
        console_of_errors.print(f"[bold red]error[/]: {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
