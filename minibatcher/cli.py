"""The command line: `minibatcher demo | generate | doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from minibatcher.stages import DEFAULT_STAGE, STAGES

app = typer.Typer(
    help="Continuous batching of LLM inference, step by step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

Model = Annotated[str, typer.Option(help="smollm2, tiny, a folder, or an id on the Hugging Face hub.")]
Threads = Annotated[int, typer.Option(min=0, help="CPU threads; 0 is half of the cores, or OMP_NUM_THREADS if set.")]


@app.command()
def demo(
    model: Model = "smollm2",
    out: Annotated[Path, typer.Option(help="Folder for the pictures and traces.")] = Path("out"),
    lanes: Annotated[int, typer.Option(min=1, help="Rows of the batch, at every stage.")] = 8,
    threads: Threads = 0,
) -> None:
    """Answer the same 16 chat prompts at every stage, and compare."""
    use_threads(threads)
    from minibatcher import demo as show

    raise typer.Exit(show.run(console, model, out, lanes))


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
    llm = LLM(model, stage=stage)
    question = prompt if raw else llm.chat_prompt([{"role": "user", "content": prompt}])
    for piece in llm.stream(question, params):
        print(piece, end="", flush=True)
    print()
    if trace:
        llm.trace.save(trace)


@app.command()
def doctor() -> None:
    """Say what this machine has, and what to do about what is missing."""
    from minibatcher import doctor as examine

    raise typer.Exit(examine.run(console))


def use_threads(threads: int) -> None:
    """Half of the cores by default: two OpenMP threads that wait for a busy core can be ten times slower than one."""
    if threads or "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(threads or max(1, (os.cpu_count() or 2) // 2))


def main() -> None:
    """Bad use ends with exit code 2 and a sentence, not with a traceback."""
    try:
        app()
    except (ValueError, TypeError) as error:
        Console(stderr=True).print(f"[bold red]error[/]: {error}", soft_wrap=True, highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
