"""Who imports whom: torch only where it is needed, and no wing reaches up."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import minibatcher

ROOT = Path(minibatcher.__file__).parent
FILES = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*.py")}
TENSORS = {"torch", "transformers", "tokenizers", "huggingface_hub"}
ARRAYS = {"numpy", "matplotlib"}


def imports(path: Path, everywhere: bool) -> set[str]:
    """The modules that a file imports: at its top, or anywhere in it. `if TYPE_CHECKING` does not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree)) if everywhere else tree.body
    checking = {
        id(child) for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.walk(node)
    }  # fmt: skip
    found = set()
    for node in nodes:
        if id(node) in checking:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def roots(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("file", FILES)
def test_torch_and_arrays_only_where_the_plan_of_the_house_allows(file):
    found = roots(imports(FILES[file], everywhere=True))
    tensors_allowed = file.startswith("model/") or file in ("memory/pool.py", "measure/bench.py")
    # doctor.py and cli.py ask torch about the machine, inside the function that prints it
    asks = file == "doctor.py" and not roots(imports(FILES[file], everywhere=False)) & TENSORS
    assert tensors_allowed or asks or not found & TENSORS
    assert tensors_allowed or file in ("views/figure.py", "views/curves.py", "views/steps.py") or not found & ARRAYS


# The plan of the house (CONTRIBUTING.md), from the bottom up. A file imports from its own wing and from lower lines.
LINES = [
    ("request.py", "trace.py", "clock.py"),
    ("plan.py",),
    ("memory/",),
    ("model/",),
    ("schedulers/",),
    ("engine.py",),
    ("stages.py",),
    ("measure/",),
    ("text.py",),
    ("llm.py",),
    ("views/",),
    ("demo.py", "doctor.py", "simulate.py", "grading/"),
    ("lesson.py",),
    ("cli.py",),
]
ANYWHERE = ("__init__.py", "__main__.py")  # the front doors


def line_of(file: str) -> int:
    return next(i for i, line in enumerate(LINES) if any(file.startswith(start) for start in line))


@pytest.mark.parametrize("file", [file for file in FILES if file not in ANYWHERE])
def test_a_file_imports_from_its_own_wing_and_from_lower_lines(file):
    own = line_of(file)
    for name in imports(FILES[file], everywhere=True):
        parts = name.split(".")
        if parts[0] != "minibatcher":
            continue
        target = "/".join(parts[1:])
        target = next((t for t in (f"{target}.py", f"{target.rpartition('/')[0]}.py") if t in FILES), None)
        if target is None or target in ANYWHERE:
            continue
        same_wing = "/" in file and file.split("/")[0] == target.split("/")[0]
        assert same_wing or line_of(target) < own, f"{file} imports {target}, which stands on its line or above it"


def test_import_minibatcher_loads_no_torch():
    code = (
        "import sys, minibatcher, minibatcher.measure.metrics, minibatcher.views.text, minibatcher.views.perfetto\n"
        "bad = {'torch', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_checker_sees_a_forbidden_import(tmp_path):
    (tmp_path / "x.py").write_text("def f():\n    import torch.nn\n    from minibatcher.llm import LLM\n")
    assert roots(imports(tmp_path / "x.py", everywhere=True)) == {"torch", "minibatcher"}
    assert not imports(tmp_path / "x.py", everywhere=False)
