"""The exercises and their grader: solutions, stubs and mutants, the board, and submissions that misbehave."""

from __future__ import annotations

import ast
import doctest
import functools
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

# The kernels of the bonus run in the interpreter, and this counts when triton is first imported.
os.environ.update({} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"})

from minibatcher.grading import Wrong, check, expect, expect_error, expect_timeline, part, show
from minibatcher.grading import mutants as mutants_module
from minibatcher.grading.checks import Task
from minibatcher.grading.formats import gradescope
from minibatcher.grading.hints import BEGIN, CASE, CODE, read
from minibatcher.grading.limits import TimeLimit, TooLong
from minibatcher.grading.report import FAILED, PASSED, SKIPPED, TODO, CheckResult, Report, TaskResult, as_lines, as_text
from minibatcher.grading.runner import Loader, draw, run_check
from minibatcher.grading.submission import load
from minibatcher.grading.supervise import grade
from minibatcher.grading.tasks import Check, check_files, collect, number_of
from minibatcher.grading.toys import attend
from minibatcher.trace import Trace

ROOT = Path(__file__).resolve().parent.parent
EXERCISES = ROOT / "exercises"
FILES = check_files(EXERCISES)
NAMES = [name for name in FILES if name != "open_challenge"]
TENSORS = {"ex04_paged_attention", "ex04_triton"}
ENVIRONMENT = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def needs_interpreter(exercise: str) -> None:
    if exercise == "ex04_triton":
        pytest.importorskip("triton", reason="Triton is not installed (it exists for Linux only)")
    if exercise == "ex04_triton" and "TRITON_INTERPRET" not in os.environ:
        pytest.skip("Triton is in use for the GPU here; its interpreter needs a process of its own")


def checks(exercise: str | None = None) -> list[Check]:
    return [one for name in FILES if exercise in (None, name) for one in collect(EXERCISES, name)]


def tasks() -> dict[str, Task]:
    return {one.task.number: one.task for one in checks()}


MUTANTS = list(mutants_module.mutants(EXERCISES))


@functools.cache
def outcome(exercise: str, *overlays: Path) -> mutants_module.Outcome:
    needs_interpreter(exercise)
    return mutants_module.run(EXERCISES, exercise, *overlays)


# -- the exercises ----------------------------------------------------------------------------------------------------


def test_sixty_points_and_a_bonus_of_eight():
    assert sum(task.points for task in tasks().values() if not task.bonus) == 60
    assert sum(task.points for task in tasks().values() if task.bonus) == 8
    by_exercise = {"0b": 6, "1": 5, "2": 9, "3": 12, "4": 8, "5": 8, "6": 6, "7": 6}
    for number, points in by_exercise.items():
        own = [t for t in tasks().values() if t.number.split(".")[0] == number and not t.bonus]
        assert sum(task.points for task in own) == points
    assert all(10 <= task.minutes <= 40 for task in tasks().values() if task.number != "C.1")


def test_the_name_of_a_check_is_its_own():
    names = [one.name for one in checks()]
    assert len(names) == len(set(names))
    assert all(one.function.__doc__ and one.task.title for one in checks())


@pytest.mark.parametrize("exercise", FILES)
def test_a_stub_is_to_do(exercise):
    """It is loaded, says which task it is, and costs and gives nothing."""
    needs_interpreter(exercise)
    loader = Loader(EXERCISES)
    for one in checks(exercise):
        result = run_check(one, functools.partial(loader.names, exercise), file=f"{exercise}.py")
        assert result.status in (TODO, SKIPPED), result


@pytest.mark.parametrize("exercise", FILES)
def test_a_solution_has_full_marks(exercise):
    for name, (_, result) in outcome(exercise).items():
        assert result.status in (PASSED, SKIPPED), f"{name}: {result.failure}"


SECOND = sorted(path.stem.removesuffix("_2") for path in (EXERCISES / "solutions").glob("*_2.py"))


@pytest.mark.parametrize("exercise", SECOND)
def test_a_solution_in_another_style_has_full_marks(exercise):
    for name, (_, result) in outcome(exercise, EXERCISES / "solutions" / f"{exercise}_2.py").items():
        assert result.status in (PASSED, SKIPPED), f"{name}: {result.failure}"


def test_every_scheduling_and_allocator_task_has_a_second_solution():
    wanted = {
        "ex01_static_batching": {"static_loop"},
        "ex02_iteration_level": {"who_joins", "flatten", "commit"},
        "ex03_paged_memory": {"slot_mapping", "BlockAllocator", "SharedBlockAllocator", "admit", "waste"},
        "ex05_chunked_prefill": {"split_budget", "chunk_schedule", "stall"},
        "ex06_preemption": {"make_room", "AgingQueue"},
        "ex07_bug_hunt": {"repaired_step"},
    }
    for exercise, names in wanted.items():
        tree = ast.parse((EXERCISES / "solutions" / f"{exercise}_2.py").read_text(encoding="utf-8"))
        assert names <= {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def signatures(names: dict, file: Path) -> dict[str, str]:
    """Those of the functions and of the classes' public methods that the file itself defines."""
    found = {}
    for name, value in names.items():
        if inspect.isfunction(value) and Path(value.__code__.co_filename) == file:
            found[name] = str(inspect.signature(value))
        elif inspect.isclass(value) and value.__module__ == names["__name__"]:
            for method, function in vars(value).items():
                function = function.fget if isinstance(function, property) else function
                if inspect.isfunction(function) and (method == "__init__" or method[0] != "_"):
                    found[f"{name}.{method}"] = str(inspect.signature(function))
        elif type(value).__name__ in ("JITFunction", "InterpretedFunction"):
            found[name] = str(value.arg_names)
    return found


@pytest.mark.parametrize("exercise", FILES)
def test_stub_and_solution_have_the_same_signatures(exercise):
    needs_interpreter(exercise)
    stub, solution = EXERCISES / f"{exercise}.py", EXERCISES / "solutions" / f"{exercise}.py"
    expected = signatures(load(stub), stub)
    found = signatures(load(solution), solution)
    assert expected and {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("exercise", FILES)
def test_the_examples_of_a_stub_hold(exercise):
    """Its doctests, run with the solution's functions: a learner's first check."""
    needs_interpreter(exercise)
    docs = load(EXERCISES / f"{exercise}.py")
    names = load(EXERCISES / f"{exercise}.py", EXERCISES / "solutions" / f"{exercise}.py")
    finder, runner, examples = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False), 0
    for name, thing in docs.items():
        text = getattr(getattr(thing, "fn", thing), "__doc__", None) or ""
        if ">>>" in text and getattr(thing, "__module__", docs["__name__"]) == docs["__name__"]:
            test = finder.get_doctest(text, dict(names), f"{exercise}.{name}", exercise, 0)
            examples += len(test.examples)
            assert runner.run(test).failed == 0
    assert examples or exercise in ("open_challenge",)


@pytest.mark.parametrize("exercise", FILES)
def test_a_stub_says_points_minutes_and_when_to_stop(exercise):
    text = (EXERCISES / f"{exercise}.py").read_text(encoding="utf-8")
    for task in {one.task.number: one.task for one in checks(exercise)}.values():
        if task.points:
            found = re.search(
                rf"Task {task.number}[^(]*\((\d+) points?, (\d+) minutes; after (\d+) take a hint\)", text
            )
            assert found, f"{task.number} has no line with points, minutes and a stop rule"
            assert (int(found[1]), int(found[2])) == (task.points, task.minutes)
            assert int(found[3]) > task.minutes


@pytest.mark.parametrize("exercise", FILES)
def test_hints_lead_from_a_question_to_a_blank(exercise):
    found = read(EXERCISES)
    for task in {one.task.number for one in checks(exercise)}:
        own = {one.name for one in checks(exercise) if one.task.number == task}
        titles = list(found[task])
        assert {BEGIN, CASE, CODE} <= set(titles)
        assert set(titles) - {BEGIN, CASE, CODE} <= own, "a hint for a check that is not there"
        if task != "C.1":
            assert own <= set(titles), "a check without a question of its own"
        assert "________" in found[task][CODE] or "___" in found[task][CODE]
        for title in own & set(titles):
            assert "?" in found[task][title]


@pytest.mark.parametrize(
    "exercise",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "open_challenge" else [])
        for name in FILES
        if name != "ex04_triton"
    ],
)
def test_an_exercise_ends_with_something_to_see(exercise):
    loader = Loader(EXERCISES / "solutions")
    ran = [(one, outcome(exercise)[one.name][1]) for one in checks(exercise)]
    picture = draw(ran, loader)
    assert "There is no picture" not in picture and "WRONG" not in picture and "NOT" not in picture
    assert len(picture.splitlines()) > 4
    assert draw([(one, CheckResult(one.name, "")) for one, _ in ran], loader) == ""


def test_the_recorded_traces_are_what_the_broken_engines_do(tmp_path, monkeypatch):
    collect(EXERCISES, "ex07_bug_hunt")
    import broken

    monkeypatch.setattr(broken, "TRACES", tmp_path)
    broken.main()
    for path in sorted((EXERCISES / "traces").glob("*.jsonl")):
        recorded, anew = Trace.load(path), Trace.load(tmp_path / path.name)
        for record in (*recorded, *anew):
            record.schedule_s = 0.0  # on the real clock
        assert recorded == anew
    assert len(list(tmp_path.iterdir())) == 3


# -- mutants ----------------------------------------------------------------------------------------------------------


def test_there_are_at_least_forty_mutants():
    assert len(MUTANTS) >= 40
    assert all(mutant.message and mutant.fails for mutant in MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.exercise}-{mutant.path.stem}")
def test_a_mutant_fails_exactly_the_checks_it_names(mutant):
    assert mutants_module.failed(outcome(mutant.exercise, mutant.path)) == mutant.fails


def test_every_check_catches_a_mutant():
    caught = {name for mutant in MUTANTS for name in mutant.fails}
    assert caught == {one.name for one in checks()}


def test_misconceptions_are_what_the_mutants_give():
    """If not: python -m minibatcher.grading.mutants. (Numbers of tensors differ a little from machine to machine.)"""
    recorded = json.loads((EXERCISES / "misconceptions.json").read_text(encoding="utf-8"))
    exact = [mutant for mutant in MUTANTS if mutant.exercise not in TENSORS]
    anew = mutants_module.misconceptions((mutant, outcome(mutant.exercise, mutant.path)) for mutant in exact)
    numbers = {one.task.number for name in TENSORS for one in checks(name)}
    assert {number: found for number, found in recorded.items() if number not in numbers} == anew
    assert numbers <= recorded.keys()


# -- the learner's board ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A copy of the exercises, as a learner has it; `folder.solve("ex01")` puts solutions in place of the stubs."""

    class Folder:
        path = tmp_path / "exercises"

        def solve(self, *names: str) -> None:
            for name in names:
                for source in (EXERCISES / "solutions").glob(f"{name}*.py"):
                    if not source.stem.endswith("_2"):
                        shutil.copy(source, self.path / source.name)

        def write(self, name: str, text: str) -> None:
            (self.path / name).write_text(text, encoding="utf-8")

        def change(self, name: str, old: str, new: str) -> None:
            text = (self.path / name).read_text(encoding="utf-8")
            assert old in text
            self.write(name, text.replace(old, new))

        def lay_over(self, name: str, mutant: str) -> None:
            source = EXERCISES / "mutants" / name / f"{mutant}.py"
            text = (self.path / f"{name}.py").read_text(encoding="utf-8") + "\n\n" + source.read_text(encoding="utf-8")
            self.write(f"{name}.py", text.replace('"""Solutions', '"""Mine', 1))

    ignore = shutil.ignore_patterns("solutions", "mutants", "__pycache__", ".hints.json")
    shutil.copytree(EXERCISES, Folder.path, ignore=ignore)
    return Folder()


def board(report: Report) -> str:
    return as_text(as_lines(report))


def test_a_failure_says_what_was_called_expected_and_got_and_names_the_misconception(folder):
    folder.solve("ex01")
    folder.lay_over("ex01_static_batching", "counts_the_padding")
    assert board(grade(folder.path, "1.1")) == (
        """\
1.1  Left-pad a batch, with positions  FAIL     1/2    3 of 5 checks
total                                            1/2

1.1 Left-pad a batch, with positions: a line that starts with padding begins at position 0 after it
    with     left_pad([[7, 8], [1, 2, 3, 4]], pad=9) -> [[[9, 9, 7, 8], [1, 2, 3, 4]], [[0, 0, 1, 1], [1, 1, 1, 1]],
               [[0, 1, 2, 3], [0, 1, 2, 3]]]
    expected [[0, 0, 0, 1], [0, 1, 2, 3]]
    got      [[0, 1, 2, 3], [0, 1, 2, 3]]
    why      you counted the padding
    run only this:  pytest exercises -k "test_positions_start_after_padding"
    stuck?          add --hint
    (1 more check failed)"""
    )


def test_a_wrong_schedule_is_drawn_up_to_its_first_wrong_step(folder):
    folder.write(
        "ex05_chunked_prefill.py", "def split_budget(gaps, budget):\n    return [min(gap, 2) for gap in gaps]\n"
    )
    report = grade(folder.path, "5.1")
    failure = next(one.failure for _, one in report.failures() if one.name == "test_the_budget_in_the_engine")
    assert failure.picture == (
        "expected  lane 0  Aa\n"
        "          lane 1  .B\n"
        "          lane 2  ..\n"
        "                   ^ step 1\n"
        "got       lane 0  AA\n"
        "          lane 1  .B\n"
        "          lane 2  ..\n"
        "                   ^ step 1"
    )
    assert failure.calls == []


def test_points_are_given_in_proportion_and_rounded_down():
    task = Task("9.1", "T", points=3, minutes=10)
    score = lambda *statuses: TaskResult(task, "ex", [CheckResult(s, "", s) for s in statuses]).score  # noqa: E731
    assert score(*[PASSED] * 4) == 3
    assert score(*[PASSED] * 3, FAILED) == 2
    assert score(PASSED, FAILED, FAILED, FAILED) == 0
    assert score(TODO, TODO) == 0


def test_a_task_is_to_do_failed_begun_or_passed():
    task = Task("9.1", "T", points=3, minutes=10)
    status = lambda *statuses: TaskResult(task, "ex", [CheckResult(s, "", s) for s in statuses]).status  # noqa: E731
    assert status(TODO, TODO) == TODO
    assert status(PASSED, PASSED) == PASSED
    assert status(PASSED, TODO) == TODO
    assert status(PASSED, TODO, FAILED) == FAILED
    assert status(SKIPPED, SKIPPED) == SKIPPED


def test_a_bonus_stands_outside_the_total_and_says_what_it_needs(monkeypatch, folder):
    folder.solve("ex04_paged")
    bonus = Task("4.9", "A kernel", 2, 10, bonus=True, needs="a_package_that_is_not_there")
    one = Check(bonus, "ex04_triton", lambda ex: None, "test_it")
    result = run_check(one, dict)
    assert (result.status, result.reason) == (SKIPPED, "needs a_package_that_is_not_there")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    triton = next(one for one in collect(EXERCISES, "ex04_triton"))
    result = run_check(triton, dict)
    report = Report([TaskResult(triton.task, "ex04_triton", [result])])
    assert "needs Linux" in board(report) and report.max_score == 0 and not list(report.failures())


def test_what_is_printed_is_shown_with_the_failure(folder):
    folder.solve("ex03")
    folder.change(
        "ex03_paged_memory.py", "    return [block_table[p", '    print("start is", start)\n    return [0 for p'
    )
    folder.change("ex03_paged_memory.py", " // block_size] * block_size + p % block_size for p in", " in")
    text = board(grade(folder.path, "3.1"))
    assert "    printed  start is 0\n" in text


def test_an_error_names_the_learners_line(folder):
    folder.write("ex03_paged_memory.py", "def slot_mapping(block_table, start, end, block_size):\n    return 1 / 0\n")
    text = board(grade(folder.path, "3.1"))
    assert "    ZeroDivisionError: division by zero\n" in text
    assert "    at       ex03_paged_memory.py, line 2: return 1 / 0\n" in text
    text = board(grade(folder.path, "3.2"))
    assert "ex03_paged_memory.py has no BlockAllocator any more" in text


def test_what_comes_back_may_be_nothing_at_all(folder):
    folder.write("ex01_static_batching.py", "def left_pad(prompts, pad):\n    pass\n")
    text = board(grade(folder.path, "1.1"))
    assert "3 results are expected, in one tuple" in text and "got      None" in text


def test_a_class_tells_its_calls_as_a_story(folder):
    folder.solve("ex03")
    folder.lay_over("ex03_paged_memory", "loses_what_it_had_taken")
    text = board(grade(folder.path, "3.2"))
    assert "with     BlockAllocator(4)\n" in text and "  .take(3) -> None" in text and "  .free -> 0" in text
    assert "got      0" in text and "are lost" in text


def test_a_missing_file_is_to_do(folder):
    (folder.path / "ex06_preemption.py").unlink()
    assert {result.status for result in grade(folder.path, "6").tasks} == {TODO}


def test_hints_come_one_by_one_and_are_counted(folder):
    folder.solve("ex03")
    folder.lay_over("ex03_paged_memory", "frees_twice_silently")
    outputs = [cli("grade", "3.2", "--hint", "--json", "r.json", cwd=folder.path.parent).stdout for _ in range(4)]
    assert "hint 1 of 3 for 3.2" in outputs[0] and "Look at all of them before you change anything" in outputs[0]
    assert "hint 2 of 3" in outputs[1] and "hint 3 of 3" in outputs[2] and "________" in outputs[2]
    assert "There are no more hints" in outputs[3] and "There are no more" not in outputs[2]
    report = json.loads((folder.path.parent / "r.json").read_text())
    assert report["tasks"][0]["hints"] == 4 and report["tasks"][0]["score"] == 1


def cli(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minibatcher", *arguments]
    environment = {**ENVIRONMENT, "COLUMNS": "200", **environment}
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, encoding="utf-8", env=environment)


def test_the_command_line_refuses_what_does_not_exist(folder):
    cwd = folder.path.parent
    for arguments, words in (
        (("grade", "3.9"), "exercise 3 has 3.1, 3.2, 3.3, 3.4, 3.5"),
        (("grade", "ex99"), "give a task such as 3.2"),
        (("grade", "--submission", "nowhere"), "there is no folder nowhere"),
        (("grade", "--grade-format", "xml"), "choose from plain, gradescope"),
        (("grade", "--release", "out"), "is not the course"),
    ):
        done = cli(*arguments, cwd=cwd)
        assert done.returncode == 2 and words in done.stderr, done


def test_exit_codes(folder):
    assert cli("grade", "3.1", cwd=folder.path.parent).returncode == 0  # not begun is no failure
    folder.write("ex03_paged_memory.py", "def slot_mapping(*args):\n    return []\n")
    assert cli("grade", "3.1", cwd=folder.path.parent).returncode == 1


def test_names_of_exercises():
    for text in ("3", "3.2", "ex03", "ex03_paged_memory", "03", "EX3"):
        assert number_of(text) == "3"
    assert [number_of(text) for text in ("0b", "ex00b", "0b.1")] == ["0b"] * 3
    assert number_of("challenge") == number_of("open_challenge") == "challenge"


# -- in a notebook ----------------------------------------------------------------------------------------------------


def test_check_in_a_notebook(folder, monkeypatch):
    monkeypatch.chdir(folder.path)
    assert "3.1  The slots of a request's tokens  todo" in repr(check("3.1"))

    def slot_mapping(block_table, start, end, block_size):
        return [block_table[p // block_size] * block_size + p % block_size for p in range(start, end)]

    good = check("3.1", slot_mapping)
    assert good.report.score == 2

    def slot_mapping(block_table, start, end, block_size):
        return range(start, end)

    html = check("3.1", slot_mapping)._repr_html_()
    assert "FAIL" in html and "you took the position for the place in the pool" in html and "-&gt;" in html


# -- under pytest -----------------------------------------------------------------------------------------------------


def pytest_in(folder, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "exercises", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder.path.parent, capture_output=True, text=True, env=ENVIRONMENT)


def test_pytest_shows_the_same_board(folder):
    folder.solve("ex01")
    folder.lay_over("ex01_static_batching", "counts_the_padding")
    done = pytest_in(folder, "-k", "LeftPad or StaticLoop", "--grade-json", "r.json")
    assert board(grade(folder.path, "1")) in done.stdout
    assert "Traceback" not in done.stdout and "FAILURES" not in done.stdout and done.returncode == 1
    assert json.loads((folder.path.parent / "r.json").read_text())["score"] == 4


def test_pytest_runs_one_check_and_gives_a_hint(folder):
    done = pytest_in(folder, "-k", "test_positions_start_after_padding", "--hint")
    assert (
        "1.1  Left-pad a batch, with positions  todo     0/2    0 of 1 selected checks pass (4 not run)" in done.stdout
    )
    assert "next:" not in done.stdout
    assert "hint 1 of 3 for 1.1" in done.stdout and "1 todo" in done.stdout and done.returncode == 0


def test_pytest_says_how_many_checks_were_selected(folder):
    folder.solve("ex02")
    done = pytest_in(folder, "-k", "test_each_takes_a_lane")
    assert re.search(r"pass +0/2 +1 of 1 selected checks pass \(5 not run\)", done.stdout)
    assert "next:" not in done.stdout


def test_the_open_challenge_is_not_on_the_board_before_it_is_begun(folder):
    done = pytest_in(folder, "-k", "LeftPad or challenge")
    assert "1.1  Left-pad" in done.stdout and "C.1" not in done.stdout


def test_the_toy_attention_says_what_it_wants():
    vector = [1.0] * 8
    attend(vector, [vector], [vector])
    with pytest.raises(TypeError, match="one query, a list of numbers; you gave a list of 2 queries"):
        attend([vector] * 2, [vector], [vector])
    with pytest.raises(TypeError, match=r"keys\[0\] is a list of vectors \(append where extend is meant"):
        attend(vector, [[vector]], [vector])


def test_the_projects_own_tests_do_not_collect_the_exercises():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'testpaths = ["tests"]' in project


# -- what a check says ------------------------------------------------------------------------------------------------


def wrong(function, *arguments) -> Wrong:
    with pytest.raises(Wrong) as caught:
        function(*arguments)
    return caught.value


def test_expect_takes_any_kind_of_list():
    expect((1, 2), [1, 2])
    expect(range(3), [0, 1, 2])
    expect(torch.tensor([[1.0, 2.0]]), [(1, 2)])
    expect({"a": (1,)}, {"a": [1]})
    expect(0.30001, 0.3)
    for got, expected in (([1, 2], [1]), (0.31, 0.3), (float("nan"), float("nan")), (0.0, -torch.inf), (None, [])):
        assert wrong(expect, got, expected).got == show(got)


def test_expect_error_and_part():
    expect_error(ValueError, int, "x")
    assert wrong(expect_error, ValueError, int, "3").expected == "ValueError is raised"
    assert part((1, 2), 1, 2) == 2
    assert wrong(part, [1], 1, 2).got == "[1]"


def test_expect_timeline_points_at_the_first_wrong_step():
    expect_timeline(["Aa"], ["Aa"])
    assert "^ step 2" in wrong(expect_timeline, ["Aab"], ["Aaa"]).picture
    assert "^ step 2" in wrong(expect_timeline, ["Aa"], ["Aaa"]).picture
    assert "^ step 0" in wrong(expect_timeline, [], ["Aaa"]).picture


def test_values_are_shown_in_a_line():
    assert show([1.0, 0.123456, None, "a"]) == "[1, 0.1235, None, 'a']"
    assert len(show(list(range(1000)))) <= 400
    assert " at 0x" not in show([object()])


# -- submissions that misbehave ---------------------------------------------------------------------------------------


def test_the_time_limit_counts_cpu_seconds_and_names_the_line():
    here = []

    def where(frame):
        here.append(frame.f_code.co_name)
        return "line 7"

    def loops():
        while True:
            pass

    limit = TimeLimit(0.2, where)
    with pytest.raises(TooLong), limit:
        loops()
    assert limit.line == "line 7" and here[0] in ("loops", "_slowness")


@pytest.mark.skipif(os.name == "nt", reason="there is no `resource` on Windows")
def test_a_loop_that_fills_the_memory_is_ended_before_its_time(folder):
    loop = "    slots = []\n    while True:\n        slots += bytes(1_000_000)\n"
    folder.write("ex03_paged_memory.py", SLOT_MAPPING + loop)
    report = grade(folder.path, "3.1", seconds=60)
    failures = [one.failure for _, one in report.failures()]
    assert {failure.sentence for failure in failures} == {"it takes more and more memory"} and len(failures) == 4
    assert failures[0].where.startswith(("ex03_paged_memory.py, line 3", "ex03_paged_memory.py, line 4"))


SLOT_MAPPING = "def slot_mapping(block_table, start, end, block_size):\n"


def test_a_loop_that_catches_everything_is_ended_by_force(folder):
    loop = "    while True:\n        try:\n            x = 1\n        except BaseException:\n            pass\n"
    folder.write("ex03_paged_memory.py", SLOT_MAPPING + loop)
    failures = [one.failure for _, one in grade(folder.path, "3.1", seconds=0.3).failures()]
    assert len(failures) == 4
    assert {failure.sentence for failure in failures} == {"it does not come to an end"}
    assert "ex03_paged_memory.py, line" in failures[0].where


def test_silence_is_ended_by_the_wall_clock(folder):
    folder.write("ex03_paged_memory.py", "import time\n" + SLOT_MAPPING + "    time.sleep(1000)\n")
    failures = [one.failure for _, one in grade(folder.path, "3.1", silence=4).failures()]
    assert len(failures) == 4
    words = "it did not answer for 4 s: does it sleep, or wait for something?"
    assert {failure.sentence for failure in failures} == {words}


HOSTILE_CONFTEST = """\
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""


def test_whatever_a_file_does_the_others_are_graded(folder):
    """Ends Python in a call, or while it is loaded, or politely; cannot be read; does not come to an end."""
    folder.solve("ex0[0123567]")
    folder.write("conftest.py", HOSTILE_CONFTEST)
    folder.write("ex00b_kv_cache.py", "import os\nos._exit(0)\n")
    folder.write("ex01_static_batching.py", "def left_pad(prompts, pad:\n    return None\n")
    folder.change(
        "ex02_iteration_level.py", "    joining: list[int] = []", "    import os; os._exit(0)\n    joining = []"
    )
    folder.change(
        "ex03_paged_memory.py", "    return [block_table[p", "    while True: pass\n    return [block_table[p"
    )
    folder.change("ex06_preemption.py", "import heapq", "import sys; sys.exit(0)")
    report = grade(folder.path, None, seconds=0.5)
    scores = {result.task.number: (result.score, result.status) for result in report.tasks}
    full = {number for number, task in tasks().items() if scores.get(number) == (task.points, PASSED)}
    assert full == {"2.1", "2.3", "2.4", "3.2", "3.3", "3.4", "3.5", "5.1", "5.2", "5.3", "7.1", "7.2", "7.3"}
    for number in ("0b.1", "0b.2", "1.1", "1.2", "2.2", "3.1", "6.1", "6.2"):
        assert scores[number] == (0, FAILED)
    assert all(status in (TODO, SKIPPED) for number, (_, status) in scores.items() if number[0] == "4")
    why = {result.task.number: one.failure for result, one in reversed(list(report.failures()))}
    assert "while the file is loaded (exit code 0)" in why["0b.1"].sentence
    assert why["1.1"].sentence.startswith("Python cannot read the file: '(' was never closed")
    assert why["1.1"].where == "ex01_static_batching.py, line 1: def left_pad(prompts, pad:"
    assert "the code ends Python (exit code 0)" in why["2.2"].sentence
    assert why["3.1"].sentence == "it does not come to an end"
    assert why["3.1"].where.endswith("while True: pass")
    assert "SystemExit" in why["6.1"].sentence


# -- for instructors --------------------------------------------------------------------------------------------------


def test_the_plain_report_has_all_that_later_formats_need(folder):
    folder.solve("ex03")
    report = grade(folder.path, "3").to_dict()
    assert (report["score"], report["max_score"]) == (12, 12)
    assert re.fullmatch(r"[\d.]+\+[0-9a-f]{8}", report["version"])
    task = report["tasks"][1]
    assert task["task"]["number"] == "3.2" and task["exercise"] == "ex03_paged_memory" and task["score"] == 3
    assert {"name", "sentence", "status", "failure", "reason", "seconds"} <= task["checks"][0].keys()
    json.dumps(report)


def test_gradescopes_report(folder):
    folder.solve("ex01")
    folder.lay_over("ex01_static_batching", "counts_the_padding")
    report = gradescope(grade(folder.path, "1"))
    assert report["score"] == 4 and {"score", "output", "tests"} == report.keys()
    keys = {"name", "number", "score", "max_score", "status", "output", "tags", "visibility"}
    assert all(test.keys() == keys for test in report["tests"])
    assert [(test["number"], test["score"], test["max_score"], test["status"]) for test in report["tests"]] == [
        ("1.1", 1, 2, "failed"),
        ("1.2", 3, 3, "passed"),
    ]
    assert "you counted the padding" in report["tests"][0]["output"]
    assert all(test["visibility"] == "visible" for test in report["tests"])


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    target = tmp_path_factory.mktemp("release") / "out"
    done = cli("grade", "--release", str(target), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return target


def test_a_release_has_no_solutions(released):
    student = released / "student"
    names = {path.relative_to(student).as_posix() for path in student.rglob("*") if path.is_file()}
    assert {"exercises/ex01_static_batching.py", "exercises/misconceptions.json", "exercises/README.md"} <= names
    assert {".github/workflows/grade.yml", "minibatcher/engine.py", "pyproject.toml", "course.py"} <= names
    assert not [name for name in names if "solutions/" in name or "mutants/" in name or "test_grader" in name]
    assert not [name for name in names if "__pycache__" in name or ".hints.json" in name]
    archive = zipfile.ZipFile(released / "autograder.zip")
    inside = set(archive.namelist())
    assert {"setup.sh", "run_autograder", "course/exercises/tests/test_ex01_static_batching.py"} <= inside
    assert not [name for name in inside if "solutions/" in name or "mutants/" in name]
    assert cli("grade", "--release", str(released), cwd=ROOT).returncode == 2  # it is not empty any more


@pytest.mark.skipif(os.name == "nt", reason="Gradescope runs on Linux")
def test_the_autograder_reads_nothing_but_the_exercises_files(released, tmp_path):
    """A submission with a conftest.py, a check of its own, and a module that is called like one of Python's."""
    with zipfile.ZipFile(released / "autograder.zip") as archive:
        archive.extractall(tmp_path / "source")
    submission = tmp_path / "submission" / "exercises"
    (submission / "tests").mkdir(parents=True)
    shutil.copy(EXERCISES / "solutions" / "ex05_chunked_prefill.py", submission)
    (submission / "ex03_paged_memory.py").write_text("import os\nos._exit(0)\n")
    (submission / "ex01_static_batching.py").write_text("this is no Python\n")
    (submission / "conftest.py").write_text(HOSTILE_CONFTEST)
    (submission / "random.py").write_text("raise SystemExit\n")
    lax = "from minibatcher.grading import exercise\n\n@exercise('1.1', points=60, minutes=1)\n"
    lax += "class T:\n    def test_x(self, ex): pass\n"
    (submission / "tests" / "test_ex01_static_batching.py").write_text(lax)
    environment = {**ENVIRONMENT, "AUTOGRADER": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", tmp_path / "source" / "run_autograder"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0
    report = json.loads((tmp_path / "results" / "results.json").read_text())
    assert report["score"] == 8, report["output"]
    scores = {test["number"]: test["score"] for test in report["tests"]}
    assert {number: score for number, score in scores.items() if score} == {"5.1": 3, "5.2": 2, "5.3": 3}
    output = {test["number"]: test["output"] for test in report["tests"]}
    assert "Python cannot read the file" in output["1.1"] and "os._exit" in output["3.1"]
    assert sum(test["max_score"] for test in report["tests"]) == 60


# -- size and speed ---------------------------------------------------------------------------------------------------


def test_tasks_without_tensors_import_no_torch():
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from minibatcher.grading import child, command, notebook\n"
        "from minibatcher.grading.mutants import run\n"
        f"for name in {[name for name in FILES if name not in TENSORS]}:\n"
        f"    run(Path({str(EXERCISES)!r}), name)\n"
        "found = sys.modules.keys() & {'torch', 'numpy', 'triton'}\n"
        "sys.exit(f'loaded: {found}' if found else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="there is no `resource` on Windows")
def test_the_whole_board_takes_under_a_minute_and_700_mb(folder):
    """On the solutions, in seconds of computing, since the machine may be busy."""
    folder.solve("ex0")
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from minibatcher.grading.supervise import grade\n"
        f"report = grade(Path({str(folder.path)!r}))\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(report.score, used.ru_utime + used.ru_stime, used.ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    score, seconds, memory = map(float, done.stdout.split())
    assert score == 60 and seconds < 60
    assert memory * (1 if sys.platform == "darwin" else 1024) < 700e6  # macOS counts bytes
