"""The widgets in a real JupyterLab and Chromium, the exported page, and every notebook as a reader runs it."""

from __future__ import annotations

import os
import re
import shutil
import statistics
from pathlib import Path

import pytest

from minibatcher.measure.simulator import build_simulated
from minibatcher.request import Request, SamplingParams
from minibatcher.trace import Arrival, BlockMove, StepRecord, Trace, Waiting, Work
from minibatcher.views.figure import grid
from minibatcher.views.html import to_html
from minibatcher.views.scripts import SCENES
from minibatcher.views.states import CODE, STATES, owners

try:
    import browser

    MISSING = None if browser.CHROMIUM else "no Chromium (Debian: apt-get install chromium)"
except ImportError as error:
    MISSING = f"no {error.name} (pip install playwright; its own browser is not needed)"
if MISSING and os.environ.get("CI"):
    raise RuntimeError(f"CI must run the browser test, and there is {MISSING}")
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"there is {MISSING}")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SEEN: dict[str, list[str]] = {"00_welcome": []}  # states that a notebook's live timelines must show


def run(stage: str, **settings) -> Trace:
    """Fourteen requests of several lengths, one every 40 ms, on a modelled GPU that is slow enough for a queue."""
    settings = {"max_num_seqs": 4, "max_model_len": 96} | settings
    engine = build_simulated(stage, "t4", "llama-3.2-1b", dtype="float16", overhead_s=0.02, **settings)
    params = SamplingParams(max_tokens=64)
    return engine.run(
        Request([5] * (6, 9, 14, 40)[i % 4], params, name, arrival=0.04 * i, output_len=4 + 5 * (i % 5))
        for i, name in enumerate("abcdefghijklmn")
    )


def large(lanes: int, steps: int) -> Trace:
    """Lane i serves one request after the other, each of i % 40 + 20 steps, in two blocks."""
    pool = {"num_blocks": 2 * lanes, "block_size": 40}
    trace = Trace({"stage": "iteration", "model": "made up", "settings": {"max_num_seqs": lanes, **pool}})
    for step in range(steps):
        record = StepRecord(step, 0.1 * step, 0.1 * step + 0.09, schedule_s=0.001, budget=512)
        for lane in range(lanes):
            number, position = divmod(step, lane % 40 + 20)
            id, blocks = f"{lane}.{number}", [2 * lane, 2 * lane + 1]
            if position == 0:
                record.arrived.append(Arrival(id, 0.1 * step, 10, 80))
                record.blocks.append(BlockMove(id, "take", blocks))
            kind, tokens = ("decode", 1) if position else ("prefill", 10)
            record.work.append(Work(id, lane, kind, tokens, 10 + position))
            record.emitted[id] = [(7919 * step + 104729 * lane) % 49152]
            if position == lane % 40 + 19:
                record.finished.append((id, "length"))
                record.blocks.append(BlockMove(id, "free", blocks))
        record.waiting = Waiting("next", "all lanes are taken", steps - step)
        record.kv = {"used": 40 * lanes, "total": 80 * lanes, "reserved": 40 * lanes, "internal": 0, "external": 0}
        trace.append(record)
    return trace


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return {
        "static": run("static"),
        "iteration": run("iteration", block_size=4, num_blocks=96),
        "preemptive": run("preemptive", block_size=4, num_blocks=20, max_model_len=64, max_num_batched_tokens=32),
        "large": large(64, 500),
    }


@pytest.fixture(scope="module")
def page():
    with browser.chromium() as page:
        yield page


@pytest.fixture(scope="module")
def lab(tmp_path_factory, traces):
    folder = tmp_path_factory.mktemp("notebooks")
    for name, trace in traces.items():
        trace.save(folder / name)
    lab = browser.Lab(folder, tmp_path_factory.mktemp("private"), MINIBATCHER_MODEL="tiny")
    yield lab
    lab.close()


@pytest.fixture
def notebook(lab, page):
    """notebook(cell, ...) opens a notebook of these cells; its kernel is ended afterwards."""
    yield lambda *cells: lab.open(page, lab.write(f"{os.urandom(4).hex()}.ipynb", *cells))
    lab.shut_down_kernels()


IMPORTS = """
import time
from minibatcher.trace import Trace
from minibatcher.views.predict import Predict
from minibatcher.views.widget import BlockMap, Compare, Timeline, live
static, iteration, preemptive, large = map(Trace.load, ["static", "iteration", "preemptive", "large"])
"""
LIVE = """
trace = Trace({name}.meta)
live(trace)
for record in {name}:
    trace.append(record)
    time.sleep({pause})
"""
SLIDER = """
import ipywidgets
from minibatcher.views.figure import draw

figure, slider = ipywidgets.Image(), ipywidgets.IntSlider(40, 1, 60)
def show(_=None):
    figure.value = draw(Trace(static.meta, static.records[: slider.value]))._repr_png_()
slider.observe(show, "value")
show()
ipywidgets.VBox([slider, figure])
"""


def test_every_view_in_a_notebook(notebook, page, traces):
    notebook(
        IMPORTS,
        "Timeline(preemptive, by='request')",
        "Compare(static, iteration, x='time')",
        "BlockMap(preemptive, cursor=12)",
        "Predict('How many steps?', lambda guess: print('so', guess), unit='steps', answer=63)",
        LIVE.format(name="preemptive", pause=0.01),
        SLIDER,
    )
    browser.run_all(page)
    states = ["idle", "waiting", "preempted", "prefill", "decode", "recompute", "wasted"]
    assert browser.problems(page, states) == []
    assert ["image/png" in output["data"] for output in browser.outputs(page)] == [True, True, True, False, True, False]

    keys_move_the_cursor(page, browser.cell(page, 1), len(traces["preemptive"]))
    compared = browser.cell(page, 2)
    assert [words.text_content()[:7] for words in compared.query_selector_all(".words")] == ["A: Step", "B: All "], (
        "B has ended"
    )
    assert "output tokens/s" in compared.query_selector("table").text_content()
    a_click_picks_a_request(page, browser.cell(page, 3), traces["preemptive"])
    what_was_predicted_is_locked_and_revealed(page, browser.cell(page, 4))

    dark = STATES[CODE["decode"]].dark
    timeline = browser.cell(page, 1).query_selector(".mb")
    assert dark not in timeline.evaluate(browser.COUNT_PIXELS)
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Dark' })")
    assert browser.happens(page, lambda: dark in timeline.evaluate(browser.COUNT_PIXELS), 10)
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Light' })")
    assert page.problems == []


def keys_move_the_cursor(page, cell, steps: int) -> None:
    scrubber = cell.query_selector("input")
    scrubber.focus()
    places = []
    for key in ("Home", "ArrowRight", "PageDown", "ArrowLeft", "PageUp", "End", "b"):
        page.keyboard.press(key)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        places.append(int(scrubber.input_value()))
    assert places == [0, 1, 11, 10, 0, steps - 1, steps - 1]
    assert page.evaluate(f"() => {browser.CONTENT}.widgets.length") == 7, "JupyterLab took a key for its own"
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    assert browser.happens(page, lambda: int(scrubber.input_value()) > 2), "Space does not play"
    page.keyboard.press("Space")


def a_click_picks_a_request(page, cell, trace: Trace) -> None:
    step = int(cell.query_selector("input").input_value())
    id, held = next(iter(owners(trace, step).items()))
    cell.query_selector(f".chips button:text-is('{id}')").click()
    said = f"Request {id}: logical block 0 to {held.blocks[0]}"
    assert browser.happens(page, lambda: said in cell.query_selector("details[open]").text_content())


def what_was_predicted_is_locked_and_revealed(page, cell) -> None:
    cell.query_selector("input").fill("50")
    cell.query_selector("button").click()
    told = ["You said: 50 steps.", "It is: 63 steps.", "so 50.0"]
    assert browser.happens(page, lambda: all(words in cell.text_content() for words in told), 10)
    assert cell.query_selector("input").is_disabled()


def test_live_at_64_lanes(notebook, page, seen):
    """It follows the engine, and can be scrubbed while the cell still runs."""
    notebook(IMPORTS, LIVE.format(name="large", pause=0.012))
    page.evaluate("() => { window.paints.length = 0; }")
    browser.start(page)
    page.wait_for_selector(".mb .words :text('Step 1')", timeout=30_000)
    page.wait_for_timeout(2000)
    timeline = browser.cell(page, 1).query_selector(".mb")
    words = timeline.query_selector(".words")
    paints = page.evaluate("() => window.paints.filter((time) => time > performance.now() - 2000).length")
    latencies = page.evaluate(SCRUB, timeline)
    assert 29 < int(re.match(r"Step 29 \(the last is (\d+)\)", words.text_content())[1]) < 499, "the cell still runs"
    browser.wait(page)
    timeline = browser.cell(page, 1).query_selector(".mb")  # the output was put in anew, with its picture
    assert timeline.query_selector(".words").text_content().startswith("Step 29 (the last is 499)")
    done = page.evaluate(SCRUB, timeline)
    assert browser.problems(page, ["prefill", "decode"]) == []
    running, after = (f"{statistics.median(times):.0f} and {max(times):.0f}" for times in (latencies, done))
    seen(
        f"64 lanes live: {paints / 2:.0f} frames/s; scrub latency in ms, median and largest: "
        f"while the cell runs {running}, afterwards {after}"
    )


@pytest.mark.parametrize("name", [*SCENES, "lab"])
def test_scene(notebook, page, name):
    """A reader predicts, looks, begins anew, looks again, and moves the controls."""
    what = ("batching", "BatchingLab", "") if name == "lab" else ("scenes", "scene", repr(name))
    notebook("from minibatcher.views.{} import {}\n{}({})".format(what[0], what[1], *what[1:]))
    browser.run_all(page)
    frame = browser.cell(page, 0).query_selector(".mb-frame")

    def shows(picture: bool) -> bool:
        return browser.happens(page, lambda: bool(frame.query_selector(".mb canvas, .widget-image")) is picture, 10)

    if name != "lab":
        assert shows(False)
        if field := frame.query_selector("input[placeholder='a number']"):
            field.press("r")
            assert field.input_value() == "r", "a letter that is typed is no command"
            field.fill("50")
        else:
            frame.query_selector("input[type=radio]").click()
        frame.query_selector("button:has-text('Lock')").click()
        assert shows(True) and "You said:" in frame.text_content()
        frame.query_selector("button:has-text('Reset')").click()
        assert shows(False) and "You said:" not in frame.text_content()
        frame.query_selector("button:has-text('Reveal')").click()
        assert shows(True)
        frame.query_selector("h3").click()
        page.keyboard.press("r")
        assert shows(False), "the key R"
        frame.query_selector("button:has-text('Reveal')").click()
    assert shows(True)
    assert browser.problems(page) == []
    assert page.evaluate(f"() => {browser.CONTENT}.model.toJSON().cells.map((cell) => cell.cell_type)") == ["code"]


# From the input event until the frame after the inspector has changed, thirty times.
SCRUB = """async (timeline) => {
  const scrubber = timeline.querySelector("input"), words = timeline.querySelector(".words"), times = [];
  for (let step = 0; step < 30; step++) {
    const begin = performance.now();
    const changed = new Promise((done) => new MutationObserver(done).observe(words, { childList: true }));
    scrubber.value = step;
    scrubber.dispatchEvent(new Event("input"));
    await changed;
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - begin);
  }
  return times;
}"""


def test_the_test_sees_what_is_wrong(notebook, page):
    """A slider without a handler, an exception in JavaScript, and a cell that raises."""
    notebook(
        IMPORTS + "import anywidget, ipywidgets\nfrom minibatcher.views.figure import draw",
        "figure = ipywidgets.Image(value=draw(static)._repr_png_())\nipywidgets.VBox([ipywidgets.IntSlider(), figure])",
        "class Broken(anywidget.AnyWidget):\n"
        "    _esm = 'export default { render() { setTimeout(() => { throw new Error(\"seeded\"); }); } }'\n"
        "Broken()",
        "1 / 0",
    )
    browser.run_all(page)
    assert browser.problems(page, ["decode"]) == [
        "ZeroDivisionError: division by zero",
        "dragging a slider does not change its figure",
        "no pixel of state decode",
        "JavaScript: seeded",
    ]


@pytest.mark.parametrize(("against", "zoom"), [(None, 1), ("static", 2)])
def test_exported_page(page, traces, tmp_path, against, zoom):
    """Opened from the disk, also at 200%: half as many CSS pixels, each twice as large."""
    path = tmp_path / "page.html"
    look = {"by": "request", "picked": "b", "parts": ["timeline", "blocks"]}
    to_html(traces["preemptive"], path, against=traces.get(against), **look)
    size = {"width": 1280 // zoom, "height": 720 // zoom}
    view = browser.new_page(page.context.browser, viewport=size, device_scale_factor=zoom)
    asked = []
    view.on("request", lambda request: asked.append(request.url))
    view.goto(path.as_uri())
    view.wait_for_selector(".mb .words p")
    root = view.query_selector(".mb")
    colours = root.evaluate(browser.COUNT_PIXELS)
    for state in ("preempted", "recompute", "prefill", "decode", "waiting"):
        assert STATES[CODE[state]].light in colours
    before = root.query_selector(".words").text_content()
    browser.drag(view, root.query_selector("input"), 0, 0.4)
    assert browser.happens(view, lambda: root.query_selector(".words").text_content() != before)
    assert view.evaluate("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert asked == [path.as_uri()], "the page asks for nothing else"
    assert view.problems == []
    view.context.close()


def test_every_way_to_be_dark_is_seen(page, traces, tmp_path):
    """JupyterLab's, VS Code's and Colab's mark on the page, and the reader's own wish; and it repaints on change."""
    to_html(traces["static"], tmp_path / "page.html")
    view = browser.new_page(page.context.browser)
    view.goto((tmp_path / "page.html").as_uri())
    view.wait_for_selector(".mb .words p")
    root, decode = view.query_selector(".mb"), STATES[CODE["decode"]]

    def shows(colour: str) -> bool:
        return browser.happens(view, lambda: colour in root.evaluate(browser.COUNT_PIXELS))

    for mark, undo in (
        ("document.body.dataset.jpThemeLight = 'false'", "delete document.body.dataset.jpThemeLight"),
        ("document.body.className = 'vscode-dark'", "document.body.className = ''"),
        ("document.documentElement.setAttribute('theme', 'dark')", "document.documentElement.removeAttribute('theme')"),
    ):
        view.evaluate(mark)
        assert shows(decode.dark), mark
        view.evaluate(undo)
        assert shows(decode.light), undo
    view.emulate_media(color_scheme="dark")
    assert shows(decode.dark)
    view.context.close()


# The commonest colour of each cell: its letter, its hatch and a preemption's mark cover less.
CELLS = """([rows, steps]) => {
  const root = document.querySelector(".mb"), canvas = root.querySelector("canvas.picture"), height = 17;
  const left = parseFloat(root.style.getPropertyValue("--gutter")) + 8, width = (canvas.clientWidth - 4 - left) / steps;
  const context = canvas.getContext("2d");
  const commonest = (x, y) => {
    const { data } = context.getImageData(Math.ceil(x) + 1, y + 2, Math.floor(width) - 2, height - 4), found = {};
    for (let i = 0; i < data.length; i += 4) found[data.slice(i, i + 3)] = (found[data.slice(i, i + 3)] ?? 0) + 1;
    const [[colour]] = Object.entries(found).sort((a, b) => b[1] - a[1]);
    return "#" + colour.split(",").map((part) => (+part).toString(16).padStart(2, "0")).join("").toUpperCase();
  };
  return Array.from({ length: rows }, (_, row) =>
    Array.from({ length: steps }, (_, step) => commonest(left + step * width, row * height)));
}"""


@pytest.mark.parametrize("name", ["static", "preemptive"])
@pytest.mark.parametrize("by", ["lane", "request"])
def test_cells_are_those_of_the_figure(page, traces, tmp_path, name, by):
    to_html(traces[name], tmp_path / "page.html", by=by)
    view = browser.new_page(page.context.browser)
    view.goto((tmp_path / "page.html").as_uri())
    view.wait_for_selector(".mb .words p")
    expected = [[STATES[code].light for code in row] for row in grid(traces[name], by).tolist()]
    assert view.evaluate(CELLS, [len(expected), len(expected[0])]) == expected
    view.context.close()


def test_size_of_an_exported_page(traces):
    size, both = (len(to_html(traces["large"], **more).encode()) for more in ({}, {"against": traces["large"]}))
    assert size < both < 1_000_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(lab, page, path):
    shutil.copy(path, lab.folder)
    lab.open(page, path.name)
    browser.run_all(page, 300)
    assert browser.problems(page, SEEN.get(path.stem, [])) == []
    lab.shut_down_kernels()
