"""The notebooks from end to end, without a page; test_browser.py opens each in JupyterLab."""

from __future__ import annotations

import importlib.util
import re
import time
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
execute = importlib.util.module_from_spec(spec)
spec.loader.exec_module(execute)

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path):
    return nbformat.read(path, as_version=4)


@notebooks
def test_committed_outputs_are_normalised_and_belong_to_the_code(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert execute.normalise(read(path), path.stem) == notebook, f"run: python notebooks/execute.py {path.stem}"
    text = path.read_text(encoding="utf-8")
    assert "widget-view+json" not in text and "widget-state+json" not in text
    assert not [
        output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "error"
    ]
    assert any("smollm2" in str(cell.get("outputs")) for cell in notebook.cells), "outputs of the real model are kept"


def dead_links(text: str, folder: Path) -> list[str]:
    return [link for link in re.findall(r"\]\((?!https?://)([^)#]+)", text) if not (folder / link).exists()]


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "notebooks/TEACHING.md", "exercises/README.md", "kernels/README.md"]
)
def test_pages_have_no_dead_links(name):
    page = FOLDER.parent / name
    assert not dead_links(page.read_text(encoding="utf-8"), page.parent)


@notebooks
def test_headings_questions_and_links(path):
    """Contents panel, collapsible answers (a blank line after the summary, or they do not render), and no dead link."""
    texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    whole = "\n".join(texts)
    assert texts[0].startswith("# ") and len(re.findall("^## ", whole, re.M)) >= 5
    assert whole.count("<details>") == whole.count("</details>") >= 3
    assert whole.count("<details>") == len(re.findall(r"<details>\s*<summary>[^\n]*</summary>\n\n", whole))
    assert not dead_links(whole, FOLDER)


def test_a_widget_view_and_an_old_output_are_noticed():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    view = {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "x"}
    notebook.cells[0].outputs = [nbformat.v4.new_output("display_data", view)]
    normal = execute.normalise(notebook.copy(), "00_x")
    assert list(normal.cells[0].outputs[0].data) == ["text/plain"] and normal.cells[0].id == "00-00"
    before = normal.metadata["minibatcher"]["sources"]
    normal.cells[0].source = "2"
    assert execute.normalise(normal, "00_x").metadata["minibatcher"]["sources"] != before


@pytest.mark.slow
@pytest.mark.smollm2
@notebooks
def test_on_the_real_model(path, smollm2, seen):
    begin = time.monotonic()
    execute.execute(read(path))
    seen(f"{time.monotonic() - begin:.0f} s on the real model")
