"""The lecture demos and the lab: their figures against hand calculations, their controls, and what a program sees."""

from __future__ import annotations

import re
from math import ceil

import nbformat
import pytest
from nbclient import NotebookClient

from minibatcher.measure.metrics import summary
from minibatcher.stages import STAGES
from minibatcher.views.batching import MIXES, BatchingLab
from minibatcher.views.scenes import scene
from minibatcher.views.scripts import BATCHES, HERE, LANES, SCENES, crowded, measured
from minibatcher.views.text import differences

NAMES = [*SCENES, "lab"]
MODELLED = {"why-batch": {"machine": [HERE]}}  # what else a control offers takes seconds


def opened(name: str, **values):
    return BatchingLab(**values) if name == "lab" else scene(name, **values)


def options(shown):
    for name, control in shown.controls.items():
        for value in getattr(control, "options", ()):
            if value not in MODELLED.get(getattr(shown, "name", ""), {}).get(name, ()):
                yield name, value


def figures(html: str) -> list[str]:
    """The numbers of a text, without tags and thousands' commas."""
    return re.findall(r"\d+(?:\.\d+)?", re.sub(r"<[^>]*>", " ", html).replace(",", ""))


def cells(html: str) -> list[list[str]]:
    return [re.findall(r"<td>(.*?)</td>", row) for row in html.split("<tr>")[2:]]


# -- what they say ----------------------------------------------------------------------------------------------------


def test_why_batch():
    """Weights 15.01 GB at 3.35 TB/s are 4.481 ms, launching 0.1 ms; a row of 500 tokens adds 500 x 131,072 bytes of
    keys and values, 19.6 us, and its attention, 0.26 us. Compute takes over at 989.5 / 3.35 = 295 rows."""
    one, many = (4.481 + 0.1 + rows * (0.01956 + 0.000265) for rows in (1, 64))
    played = scene("why-batch").played
    assert [float(n) for n in figures(played.answer)] == pytest.approx(
        [64, many, many / one, 1, 64, 1000 / one, 64_000 / many], rel=2e-3
    )
    assert figures(played.notes[1]) == ["4.48", "15.2", "295", "19.6"]


def test_this_machine_is_measured_when_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("MINIBATCHER_MODEL", "tiny")
    measured.cache_clear()
    shown = scene("why-batch")
    assert measured.cache_info().currsize == 0
    shown.controls["machine"].value = HERE
    name, seconds = measured()
    assert name == "tiny" and tuple(seconds) == BATCHES and min(seconds.values()) > 0
    assert f"<b>{seconds[64] / seconds[1]:.2f} times</b>" in shown.played.answer and "measured" in shown.played.story
    shown.controls["batch"].value = 256
    assert "this machine is measured with 1, 4, 16, 64 rows" in shown.said.value
    measured.cache_clear()


@pytest.mark.parametrize(
    ("lanes", "outputs", "static", "iteration"),
    [
        # Each batch lasts as long as its longest. Scheduled at every step, the last long one begins at step 24.
        (4, "40,4,4,4", 4 * 40, 64),
        (1, "40,4,4,4", 4 * 52, 4 * 52),  # one after the other, either way
        (8, "40,4,4,4", 2 * 40, 4 + 40),  # two long ones in each batch; the others begin when four have left, at 4
        (2, "6", 2 * 6, 2 * 6),
    ],
)
def test_slow_guest(lanes, outputs, static, iteration):
    shown = scene("slow-guest", lanes=lanes, outputs=outputs)
    assert [len(trace) for trace in shown.traces] == [static, iteration]
    tail = next((i for i, r in enumerate(shown.traces[1]) if not r.waiting and len(r.work) < lanes), iteration)
    assert figures(shown.played.answer)[:2] == [str(static), str(iteration)]
    assert figures(shown.played.answer)[-1] == str(iteration - tail)
    guests = [int(n) for n in outputs.split(",")] * 4
    wasted = sum(  # row-steps of a finished row, until the longest of its batch is done
        max(batch) * len(batch) - sum(batch) for batch in (guests[i : i + lanes] for i in range(0, len(guests), lanes))
    )
    assert f"In {wasted} of the {wasted + sum(guests)} row-steps" in shown.played.notes[0]
    assert (
        f"{sum(guests)} tokens on {lanes} lanes cannot take fewer than {ceil(sum(guests) / lanes)}"
        in (shown.played.notes[1])
    )


@pytest.mark.parametrize("output", [8, 30])
@pytest.mark.parametrize("max_tokens", [32, 64, 128, 236])
def test_how_many_fit(max_tokens, output):
    """By hand: 1,024 / 256; 64 blocks over those of 20 + max_tokens tokens, twice; a prompt takes 2 blocks, and one
    block stays free."""
    asked = ceil((20 + max_tokens) / 16)
    rows = cells(scene("how-many-fit", max_tokens=max_tokens, output=output).played.answer)
    assert [int(row[1]) for row in rows] == [4, 64 // asked, 64 // asked, (64 - 1) // 2]
    # 32 requests, as many at once as fit, each for `output` steps; nothing else runs
    assert [int(row[5]) for row in rows[:3]] == [ceil(32 / int(row[1])) * output for row in rows[:3]]
    assert [row[4] for row in rows[:3]] == ["0"] * 3


def test_the_lecture_s_pool():
    notes = scene("how-many-fit").played.notes
    assert figures(notes[0])[-1] == "4" and "6 of 64 blocks of 16: 10 ranges, and as many (10)" in notes[1]
    assert "31 start" in notes[2]


@pytest.mark.parametrize("budget", [64, 128, 1024])
def test_pasted_contract(budget):
    """8 decodes leave budget - 8 tokens of 2,000; in one piece 2,008 tokens take 14.1 us each."""
    rows = cells(scene("pasted-contract", budget=budget).played.answer)
    assert [int(row[1]) for row in rows] == [1, ceil(2000 / (budget - 8))]
    first, gap = ([float(row[i].split()[0]) for row in rows] for i in (2, 3))
    assert gap[0] > 2008 * 14.1e-3 and gap[1] < gap[0] / 1.8 and first[1] > first[0]
    assert first[1] > 4.48 * ceil(2000 / (budget - 8))  # reading the weights, each time
    notes = scene("pasted-contract", budget=budget).played.notes
    assert f"first token comes after {first[1]:.1f} ms in place of {first[0]:.1f} ms" in notes[2]


def test_pasted_contract_begins_without_a_budget():
    shown = scene("pasted-contract")
    assert len(shown.traces) == 1 and len(shown.traces[0]) == 60  # each stream has 60 tokens: the axis shows nothing
    widths = [record.t1 - record.t0 for record in shown.traces[0]]
    assert sorted(widths)[-1] > 5 * sorted(widths)[-2]


def test_full_is_not_fast():
    shown = scene("full-is-not-fast")
    found = {lanes: crowded(lanes, 2.5, 0.01) for lanes in LANES}
    good = {lanes: values[0] for lanes, values in found.items()}
    best = max(good, key=good.__getitem__)
    assert LANES[0] < best < LANES[-1] and good[LANES[-1]] < 0.8 * good[best], "it rises, then falls"
    assert found[LANES[-1]][1] > 0.99 * found[best][1] and found[LANES[-1]][2] > found[best][2]
    assert [row[3:] for row in cells(shown.played.answer)] == [[str(p), str(r)] for _, _, p, r in found.values()]
    kept, _, fewer, _ = crowded(LANES[-1], 2.5, 0.3)
    assert fewer < found[LANES[-1]][2] and kept > good[LANES[-1]]
    assert f"{fewer} preemptions, and a goodput of {kept:.1f}" in shown.played.notes[2]
    expected = [crowded(lanes, 1, 0.01)[0] for lanes in LANES]
    assert expected == sorted(expected), "with the expected outputs goodput does not fall"


# -- controls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_every_control_is_shown_and_its_address_opens_it_again(name):
    shown = opened(name)
    assert len(shown.controls) <= 2 or name == "lab"
    for control, value in options(shown):
        shown.controls[control].value = value
        if (control, value) == ("pool", 8):  # too small for the longest request
            assert "num_blocks=8 x block_size=16 = 128 tokens" in shown.said.value
            shown.reset()
            continue
        again = eval(shown.address, {"scene": scene, "BatchingLab": BatchingLab})
        assert again.values == shown.values and again.address == shown.address
        if name != "lab":
            assert again.played.answer == shown.played.answer and again.played.notes == shown.played.notes
        shown.reset()
        assert shown.values == opened(name).values and shown.said.value == ""


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("slow-gest", {}, "unknown scene 'slow-gest': choose from why-batch, slow-guest, how-many-fit"),
        ("slow-guest", {"lines": 4}, "unknown control lines=4: choose from lanes, outputs"),
        ("slow-guest", {"lanes": 9}, "lanes=9 is not allowed: choose from 1, 2, 3"),
        ("slow-guest", {"outputs": "40,x"}, "outputs='40,x': write at most 8 lengths of 1 to 100 tokens"),
        ("slow-guest", {"outputs": (40, 4)}, "write a text such as '40,4,4,4'"),
        ("how-many-fit", {"max_tokens": 32, "output": 64}, "output=64: max_tokens=32 ends an answer"),
        ("pasted-contract", {"budget": 100}, "budget=100 is not allowed: choose from none, 1024"),
        ("lab", {"a": "fast"}, "a='fast' is not allowed: choose from static, iteration"),
        ("lab", {"speed": 3}, "unknown: speed; the controls are a, b, mix"),
        ("lab", {"num_blocks": 3}, "unknown: num_blocks; the controls"),
        ("lab", {"requests": 0}, "requests=0 is not allowed"),
        ("lab", {"pool": 8}, "num_blocks=8 x block_size=16 = 128"),
    ],
)
def test_wrong_values_are_refused(name, values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        opened(name, **values)


def test_what_is_wrong_is_said_in_the_frame_and_the_picture_stays():
    shown = scene("slow-guest")
    shown.reveal()
    before = shown.traces
    shown.controls["outputs"].value = "<b>"
    assert "write at most 8 lengths" in shown.said.value and "<b>" not in shown.said.value
    assert shown.traces is before
    shown.controls["outputs"].value = "8,1"
    assert shown.said.value == "" and shown.traces is not before


def test_nothing_is_shown_before_the_answer_is_locked_and_reset_hides_it():
    shown = scene("slow-guest", lanes=3)
    assert not shown.stage.children
    shown.predict.lock(12.0)
    assert shown.revealed and len(shown.stage.children) == 2
    shown.controls["lanes"].value = 5
    assert shown.stage.children[1].traces == shown.traces
    shown.keys._handle_custom_msg("reset", [])  # the key R
    assert not shown.stage.children and not shown.predict.locked and shown.values["lanes"] == 3


def test_the_axis_of_the_picture_is_the_control():
    shown = scene("pasted-contract", budget=128)
    shown.reveal()
    picture = shown.stage.children[1]
    picture.x = "time"  # as a reader does
    assert shown.address == 'scene("pasted-contract", budget=128, x="time")'
    shown.controls["x"].value = "step"
    assert picture.x == "step"


def test_projector():
    shown = scene("slow-guest", projector=True)
    shown.reveal()
    assert shown.address.endswith("projector=True)") and shown.stage.children[1].font == "18pt"
    shown.keys.projector = False  # Escape leaves the full screen
    assert shown.stage.children[1].font == "" and "projector" not in shown.address


# -- the lab ----------------------------------------------------------------------------------------------------------


def test_the_lab_s_figures_are_those_of_the_runs():
    lab = BatchingLab(a="paged", b="chunked", mix="a few long prompts", budget=64, pool=128, lanes=8)
    paged, chunked = lab.traces
    assert [trace.meta["stage"] for trace in lab.traces] == ["paged", "chunked"]
    assert chunked.meta["settings"]["max_num_batched_tokens"] == 64
    assert {trace.meta["settings"]["num_blocks"] for trace in lab.traces} == {128}
    assert summary(paged).output_tokens == summary(chunked).output_tokens, "one workload"
    assert [tuple(row) for row in cells(lab.table())] == differences(paged, chunked)
    assert summary(chunked).itl.p99 < summary(paged).itl.p99 / 1.8, "the long prompts stall nobody"


def test_the_lab_says_what_a_stage_does_not_use():
    lab = BatchingLab(a="static", b="paged")
    assert "static has no use for budget and pool. paged has no use for budget." in lab._told.value
    assert lab.controls["budget"].disabled and not lab.controls["pool"].disabled
    lab.controls["b"].value = "static"
    assert lab.controls["pool"].disabled
    lab.controls["b"].value = "chunked"
    assert not lab.controls["budget"].disabled


def test_other_settings_go_to_the_stages_that_use_them():
    lab = BatchingLab(a="iteration", b="preemptive", reserve="oracle", preemption="swap", watermark=0.2)
    assert lab.traces[0].meta["settings"]["reserve"] == "oracle"
    assert lab.traces[1].meta["settings"]["preemption"] == "swap" and 'preemption="swap"' in lab.address


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_fits(mix):
    for stage in STAGES:
        lab = BatchingLab(a=stage, b=stage, mix=mix, requests=60, pool=64)
        assert all(summary(trace).finish_reasons == {"length": 60} for trace in lab.traces)


def test_the_lab_runs_the_same_workload_on_a_real_model():
    lab = BatchingLab(a="static", b="preemptive", requests=8, rate=500)
    modelled = [summary(trace).output_tokens for trace in lab.traces]
    lab.live("tiny")
    assert [summary(trace).output_tokens for trace in lab.traces] == modelled
    assert [(trace.meta["model"], trace.meta["clock"]) for trace in lab.traces] == [("tiny", "wall")] * 2
    assert lab.stage.children[0].traces == lab.traces and "Measured on tiny" in lab._told.value
    lab.controls["lanes"].value = 4
    assert lab.traces[0].meta["clock"] == "virtual"


def test_a_model_that_there_is_not_is_said_in_the_lab(monkeypatch):
    monkeypatch.setenv("MINIBATCHER_MODEL", "/no/such/folder")
    lab = BatchingLab(requests=2)
    before = lab.traces
    lab._run_live()
    assert "This cannot be run" in lab.said.value and lab.traces is before


# -- without a reader, and without Python -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_that_a_program_runs_shows_the_answer_and_a_picture(name):
    opening = (
        "from minibatcher.views.batching import BatchingLab\nBatchingLab()"
        if name == "lab"
        else f"from minibatcher.views.scenes import scene\nscene({name!r})"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(opening)])
    NotebookClient(notebook, kernel_name="python3", timeout=120).execute()
    outputs = notebook.cells[0].outputs
    assert sum("image/png" in output.data for output in outputs) == 1
    assert not any("application/vnd.jupyter.widget-view+json" in output.data for output in outputs)
    said = " ".join(output.data.get("text/html", "") for output in outputs)
    shown = opened(name)
    assert (shown.table() if name == "lab" else shown.played.answer) in said
    assert name == "lab" or all(note in said for note in shown.played.notes)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_needs_nothing_else(name, tmp_path):
    path = tmp_path / "page.html"
    shown = opened(name)
    page = shown.to_html(path)
    assert path.read_text(encoding="utf-8") == page
    assert not re.search(r"""(src|href)=["'](?!data:)|https?://|@import|url\(""", page)
    assert page.count("<html") == 1 and ("Predict." in page) is (name != "lab")
    if name != "lab":
        assert shown.played.answer in page and all(note in page for note in shown.played.notes)
