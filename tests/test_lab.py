"""A lab: its controls make the run anew, what is refused is said, and a saved notebook shows a picture."""

from __future__ import annotations

from base64 import b64decode

import ipywidgets
import pytest

from minibatcher import Request, SamplingParams
from minibatcher.measure.metrics import summary
from minibatcher.measure.simulator import build_simulated
from minibatcher.views.curves import frontier
from minibatcher.views.lab import Lab


def run(lanes: int):
    if lanes == 3:
        raise ValueError("three are refused")
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    trace = build_simulated("chunked", max_num_seqs=lanes).run(Request([0] * 5, params) for _ in range(4))
    return trace, f"{len(trace)} steps"


def curve(lanes: int):
    figures = summary(run(lanes)[0])
    return frontier({"chunked": [figures]}, {"ttft_p99": 0.1, "itl_p99": 0.1}), "a picture"


def test_a_control_makes_the_run_anew_and_a_refusal_keeps_what_was_shown():
    slider = ipywidgets.IntSlider(4, 1, 4)
    lab = Lab(run, {"by": "request"}, lanes=slider)
    before = lab.words
    slider.value = 1
    assert lab.words != before and lab.shown.meta["settings"]["max_num_seqs"] == 1
    slider.value = 3
    assert lab.words == "Refused: three are refused" and lab.shown.meta["settings"]["max_num_seqs"] == 1


@pytest.mark.parametrize("make", [run, curve])
def test_a_saved_notebook_shows_a_picture(make):
    data, _ = Lab(make, lanes=ipywidgets.IntSlider(2, 1, 4))._repr_mimebundle_()
    assert data["text/plain"].startswith("lanes=2: ") and b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert "application/vnd.jupyter.widget-view+json" in data
