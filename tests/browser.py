"""A real JupyterLab in a real Chromium: run a notebook as a reader would, and say what is wrong with it.

Headless execution never runs a widget's JavaScript; this does. All is on 127.0.0.1 and in temporary folders, and what
is started here is ended here, by its process id.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
from playwright.sync_api import ElementHandle, Error, Page, sync_playwright

from minibatcher.views.states import STATES

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHROMIUM_OPTIONS = [
    "--no-sandbox",  # it may run as root in a container
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TOKEN = "minibatcher"
SETTINGS = {"notification": {"fetchNews": "false", "checkForUpdates": False}}  # or a pop-up covers the page

CONTENT = "window.jupyterapp.shell.currentWidget.content"

# How often each colour occurs in the pictures of a timeline.
COUNT_PIXELS = """(root) => {
  const found = {};
  for (const canvas of root.querySelectorAll("canvas.picture")) {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let i = 0; i < data.length; i += 4) {
      const colour = "#" + [0, 1, 2].map((k) => data[i + k].toString(16).padStart(2, "0")).join("").toUpperCase();
      found[colour] = (found[colour] ?? 0) + 1;
    }
  }
  return found;
}"""
# When pictures were painted: each is put on its canvas in one call.
COUNT_PAINTS = """
window.paints = [];
const { putImageData } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.putImageData = function (...all) {
  window.paints.push(performance.now());
  return putImageData.apply(this, all);
};
"""


@contextmanager
def chromium() -> Iterator[Page]:
    """A page of 1280 x 720. `page.problems` lists what its JavaScript complains about."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_OPTIONS)
        try:
            yield new_page(browser)
        finally:
            browser.close()


def new_page(browser, **options) -> Page:
    page = browser.new_context(**{"viewport": {"width": 1280, "height": 720}} | options).new_page()
    page.add_init_script(COUNT_PAINTS)
    page.problems = []  # type: ignore[attr-defined]
    page.on("pageerror", lambda error: page.problems.append(f"JavaScript: {error}"))
    page.on("console", lambda said: said.type == "error" and page.problems.append(f"console: {said.text}"))
    return page


class Lab:
    """JupyterLab over a folder."""

    def __init__(self, folder: Path, private: Path, **env: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder
        settings = private / "settings" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        for name, values in SETTINGS.items():
            (settings / f"{name}.jupyterlab-settings").write_text(json.dumps(values))
        options = {
            "IdentityProvider.token": TOKEN,
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port": port,
            "ServerApp.port_retries": 0,
            "ServerApp.root_dir": folder,
            "ServerApp.open_browser": False,
            "ServerApp.allow_root": True,
            "LabApp.expose_app_in_browser": True,
            "LabApp.workspaces_dir": private / "workspaces",
            "LabApp.user_settings_dir": private / "settings",
        }
        places = {f"JUPYTER_{name}_DIR": str(private / name) for name in ("CONFIG", "DATA", "RUNTIME")}
        places["IPYTHONDIR"] = str(private / "ipython")
        self.log = private / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *(f"--{name}={value}" for name, value in options.items())],
                env={**os.environ, **places, **env},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.ask("GET", "/api/status")
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"JupyterLab did not start:\n{self.log.read_text()}")

    def ask(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(self.url + path, method=method, headers={"Authorization": f"token {TOKEN}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read()

    def close(self) -> None:
        self.process.terminate()  # it ends its kernels
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def write(self, name: str, *cells: str) -> str:
        """A notebook of code cells."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.folder / name)
        return name

    def open(self, page: Page, notebook: str) -> None:
        page.problems.clear()  # type: ignore[attr-defined]
        page.goto(f"{self.url}/doc/tree/{notebook}?reset&token={TOKEN}")
        page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
            timeout=60_000,
        )

    def shut_down_kernels(self) -> None:
        for kernel in json.loads(self.ask("GET", "/api/kernels")):
            self.ask("DELETE", f"/api/kernels/{kernel['id']}")


def run_all(page: Page, seconds: float = 120) -> None:
    """Run all cells and wait until the kernel has nothing left to do."""
    start(page)
    wait(page, seconds)


def start(page: Page) -> None:
    page.evaluate("() => { window.running = window.jupyterapp.commands.execute('notebook:run-all-cells'); }")


def wait(page: Page, seconds: float = 120) -> None:
    page.wait_for_function("() => window.running.then(() => true, () => true)", timeout=1000 * seconds)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']", timeout=1000 * seconds)
    page.wait_for_timeout(300)  # the last outputs are drawn


def problems(page: Page, states: Sequence[str] = ()) -> list[str]:
    """What a reader would find wrong with the notebook that was run. states: must be seen in its timelines."""
    found = [f"{output['ename']}: {output['evalue']}" for output in outputs(page) if output["output_type"] == "error"]
    colours: Counter[str] = Counter()
    for cell in cells(page):
        for timeline in cell.query_selector_all(".mb"):
            colours.update(timeline.evaluate(COUNT_PIXELS))
            words = timeline.query_selector(".words")
            before = words.text_content()
            drag(page, timeline.query_selector("input[type=range]"), 0.5, 0.25, 0.75)
            if not happens(page, lambda words=words, before=before: words.text_content() != before):
                found.append("dragging the scrubber does not change the inspector")
        for output in cell.query_selector_all(".jp-OutputArea-output"):
            for handle in output.query_selector_all(".widget-hslider .noUi-handle"):
                before = pictures(output)
                drag(page, handle, 0.5, 6)
                if not happens(page, lambda output=output, before=before: pictures(output) != before):
                    found.append("dragging a slider does not change its figure")
    looks = {state.name: getattr(state, theme(page)) for state in STATES}
    found += [f"no pixel of state {name}" for name in states if not colours[looks[name]]]
    return found + page.problems  # type: ignore[attr-defined]


def outputs(page: Page) -> list[dict]:
    """All outputs, from the notebook's model: the page holds only the cells that are in view."""
    return page.evaluate(f"() => {CONTENT}.model.toJSON().cells.flatMap((cell) => cell.outputs ?? [])")


def cells(page: Page) -> Iterator[ElementHandle]:
    """The nodes of all cells, each scrolled into view."""
    for i in range(page.evaluate(f"() => {CONTENT}.widgets.length")):
        yield cell(page, i)


def cell(page: Page, i: int) -> ElementHandle:
    page.evaluate(f"(i) => {CONTENT}.scrollToItem(i)", i)
    page.wait_for_timeout(150)
    return page.evaluate_handle(f"(i) => {CONTENT}.widgets[i].node", i).as_element()


def theme(page: Page) -> str:
    return "dark" if page.evaluate("() => document.body.dataset.jpThemeLight === 'false'") else "light"


def pictures(output: ElementHandle) -> list[bytes]:
    """As they look now; those that are folded away are left out, and so are those that are just being replaced."""
    found = []
    for picture in output.query_selector_all("img, canvas"):
        try:
            if picture.is_visible():
                found.append(picture.screenshot(timeout=5000))
        except Error:
            continue
    return found


def drag(page: Page, handle: ElementHandle, *places: float) -> None:
    """Press at the first place and pull to the others; they are shares of the handle's width, and may lie outside."""
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    for i, place in enumerate(places):
        page.mouse.move(box["x"] + place * box["width"], box["y"] + box["height"] / 2, steps=4)
        if i == 0:
            page.mouse.down()
    page.mouse.up()


def happens(page: Page, condition: Callable[[], bool], seconds: float = 3) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        page.wait_for_timeout(50)
    return False
