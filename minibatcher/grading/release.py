"""`minibatcher grade --release DIR`: what an instructor hands out, and what grades it.

    DIR/student/          the course without solutions, mutants and the grader's own tests, with a workflow for GitHub
    DIR/autograder.zip    for Gradescope: setup.sh, run_autograder, and the same course

The autograder takes from a submission the exercises' own files and nothing else: a conftest.py, a changed check or a
module of another name has no effect.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("minibatcher", "kernels", "exercises", "notebooks", "tests", ".devcontainer")
FILES = ("pyproject.toml", "course.py", "environment.yml", "Makefile", ".gitignore")
PAPERS = ("README.md", "CONTRIBUTING.md", "LICENSE")
LEFT_OUT = ("solutions", "mutants", "test_grader.py", ".hints.json", "__pycache__", "*.egg-info", ".*_checkpoints")

WORKFLOW = """\
name: grade
on: [push, workflow_dispatch]

permissions:
  contents: read

jobs:
  grade:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@v5
      - uses: actions/setup-python@v6
        with:
          python-version: "3.12"
          cache: pip
          cache-dependency-path: pyproject.toml
      - run: python course.py setup
      - run: .venv/bin/python -m minibatcher grade --grade-json report.json
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: report
          path: report.json
"""

SETUP = """\
#!/usr/bin/env bash
# Gradescope runs this once, when it builds the image.
set -euo pipefail
cd "${AUTOGRADER:-/autograder}/source/course"
newest() { for n in 14 13 12 11; do command -v "python3.$n" && return; done; return 1; }
if ! newest > /dev/null; then
    apt-get update
    apt-get install -y python3.11 python3.11-venv
fi
"$(newest)" course.py setup
"""

RUN = """\
#!/usr/bin/env bash
# Gradescope runs this for each submission. Whatever the submission does, there is a report.
AUTOGRADER="${AUTOGRADER:-/autograder}"
RESULTS="$AUTOGRADER/results/results.json"
cd "$AUTOGRADER/source/course"
mkdir -p "$AUTOGRADER/results"
rm -f "$RESULTS"
"${PYTHON:-.venv/bin/python}" -m minibatcher grade --exercises exercises \\
    --submission "$AUTOGRADER/submission" --grade-format gradescope --grade-json "$RESULTS"
if [ ! -f "$RESULTS" ]; then
    echo '{"score": 0, "output": "The grader itself failed: tell your instructor."}' > "$RESULTS"
fi
exit 0
"""


def release(exercises: Path, target: Path) -> Iterator[str]:
    """Writes both, and says what. Raises ValueError when there is nothing to copy from, or the target is not empty."""
    root = exercises.parent
    if not (root / "pyproject.toml").exists() or not (root / "minibatcher").is_dir():
        raise ValueError(f"{root} is not the course: --release copies it, and works in a checkout alone")
    if target.exists() and any(target.iterdir()):
        raise ValueError(f"{target} is not empty: name a new folder")
    student = target / "student"
    copy_course(root, student)
    write(student / ".github" / "workflows" / "grade.yml", WORKFLOW)
    yield f"{student}: hand this out (as a repository, or as a zip)"

    with tempfile.TemporaryDirectory() as scratch:
        copy_course(root, Path(scratch) / "course")
        write(Path(scratch) / "setup.sh", SETUP, executable=True)
        write(Path(scratch) / "run_autograder", RUN, executable=True)
        archive = shutil.make_archive(str(target / "autograder"), "zip", scratch)
    yield f"{archive}: upload this to Gradescope"


def copy_course(root: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for name in FOLDERS:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for name in (*FILES, *PAPERS):
        if (root / name).exists():
            shutil.copy2(root / name, target / name)


def write(path: Path, text: str, executable: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    if executable:
        path.chmod(0o755)
