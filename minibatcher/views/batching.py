"""The open lab: two stages serve one workload side by side, and every control may be tried.

BatchingLab()
BatchingLab(a="chunked", b="preemptive", pool=32, watermark=0.1).live("tiny")
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets

from minibatcher.measure.metrics import summary
from minibatcher.measure.simulator import build_simulated, simulated_requests
from minibatcher.measure.workloads import Draw, Job, arrivals, at_most, lengths, synthetic
from minibatcher.stages import DEFAULTS, STAGES, build_engine, uses
from minibatcher.trace import Trace
from minibatcher.views import html
from minibatcher.views.frame import Frame, choice, slider, table
from minibatcher.views.text import differences
from minibatcher.views.widget import Compare, Live


def rarely(long: int, short: str) -> Draw:
    """One length in five is long."""
    usual = lengths(short)
    return lambda draw: long if draw.random() < 0.2 else usual(draw)


MIXES: dict[str, tuple[Draw, Draw]] = {  # of prompts and of outputs
    "chat": (at_most(150, lengths("lognormal:25:1.0")), at_most(80, lengths("lognormal:16:1.0"))),
    "all alike": (lengths("24"), lengths("16")),
    "a few long answers": (lengths("10..30"), rarely(70, "4..12")),
    "a few long prompts": (rarely(600, "8..24"), lengths("12..20")),
}
SETTINGS = {"lanes": "max_num_seqs", "budget": "max_num_batched_tokens", "pool": "num_blocks"}  # which a control sets


class BatchingLab(Frame):
    """Two stages on a modelled GPU, compared whenever a control moves; `live` runs the same on a real model.

    a, b: stages. rate: requests/s. mix: lengths of prompts and outputs. lanes, budget, pool (in blocks): settings; a
    stage that has no use for one leaves it out. requests, seed: of the workload. gpu, model: as `build_simulated` takes
    them. settings: others, for the stage or stages that use them.

    Raises ValueError, naming what is allowed, for a value that a control cannot have and for an unknown setting.
    """

    def __init__(
        self,
        *,
        requests: int = 32,
        seed: int = 0,
        gpu: str = "h100",
        model: str = "llama-3.1-8b",
        projector: bool = False,
        **values: Any,
    ) -> None:
        controls = {
            "a": choice("A", tuple(STAGES), "static"),
            "b": choice("B", tuple(STAGES), "preemptive"),
            "mix": choice("lengths", tuple(MIXES), "chat"),
            "rate": slider("arrivals a second", (10, 20, 50, 100, 200, 500), 200),
            "lanes": slider("lanes", (1, 2, 4, 8, 16, 32), 16),
            "budget": slider("budget, tokens a step", (16, 32, 64, 128, 256, 512), 64),
            "pool": slider("pool, blocks", (8, 16, 32, 48, 64, 128, 256), 48),
        }
        allowed = DEFAULTS.keys() - SETTINGS.values()
        self.settings = {name: values.pop(name) for name in allowed & values.keys()}
        if unknown := values.keys() - controls.keys():
            raise ValueError(
                f"unknown: {', '.join(unknown)}; the controls are {', '.join(controls)}, and other settings are "
                f"{', '.join(sorted(allowed))}"
            )
        if requests < 1:
            raise ValueError(f"requests={requests} is not allowed: 1 or more")
        self.workload: dict[str, Any] = {"requests": requests, "seed": seed}
        self.machine: dict[str, Any] = {"gpu": gpu, "model": model}
        self.traces: list[Trace] = []
        self._picture: Compare | None = None
        self._told = ipywidgets.HTML()
        button = ipywidgets.Button(
            description="Run on the real model", tooltip="The same workload, live", layout={"width": "auto"}
        )
        button.on_click(lambda _: self._run_live())
        super().__init__("Batching lab", controls, values, buttons=[button], projector=projector)
        self.below.children = [self._told]
        self.play()

    @property
    def address(self) -> str:
        """The line of Python that opens this lab as it stands."""
        return self.line("BatchingLab", **self.workload, **self.machine, **self.settings)

    def play(self) -> None:
        unused = [[name for name, setting in SETTINGS.items() if setting not in uses(stage)] for stage in self._stages]
        for name in SETTINGS:
            self.controls[name].disabled = all(name in names for names in unused)
        jobs = self._jobs()
        traces = [
            build_simulated(stage, **self.machine, **self._settings(stage)).run(simulated_requests(jobs))
            for stage in self._stages
        ]
        words = [
            f"{stage} has no use for {' and '.join(names)}."
            for stage, names in dict(zip(self._stages, unused, strict=True)).items()
            if names
        ]
        self._show(traces, " ".join(words))

    def live(self, model: Any = None) -> None:
        """Run the same workload on a real model, first A, then B, and follow it step by step; then compare the two.

        model: as `load` takes it. Arrivals keep their times, which a CPU's longer steps crowd together.
        """
        from minibatcher.model.load import load  # torch, where a real model is asked for

        self.say("The model is loaded.")
        loaded, traces = load(model), []
        # A small vocabulary has no id as high as a long prompt's last one.
        jobs = [replace(job, prompt_token_ids=[id % 256 for id in job.prompt_token_ids]) for job in self._jobs()]
        for side, stage in zip("AB", self._stages, strict=True):
            self.say(f"{side}: {stage} on {loaded.name}, live ...")
            engine = build_engine(stage, loaded, **self._settings(stage))
            view = Live(engine.trace, font=self.font)
            self.stage.children = [view]
            try:
                traces.append(engine.run(simulated_requests(jobs)))
            finally:
                view.stop()
        self._show(traces, f"Measured on {escape(loaded.name)}. Move a control to be on the modelled GPU again.")

    def shown(self) -> Iterable[Any]:
        return [f"<h3>{self.title}</h3>", self._compare().picture(), self.table(), self._told.value]

    def table(self) -> str:
        """The differences, in HTML: throughput, TTFT, ITL, utilisation."""
        return table(("", "A", "B", "from A to B"), differences(*self.traces))

    def to_html(self, path: str | Path) -> str:
        """Write what is compared into a page that needs nothing else. Returns the page."""
        picture = self._compare()
        return html.to_html(self.traces[0], path, against=self.traces[1], by=picture.by, x=picture.x, font=self.font)

    @property
    def _stages(self) -> tuple[str, str]:
        return self.values["a"], self.values["b"]

    def _settings(self, stage: str) -> dict[str, Any]:
        chosen = {setting: self.values[name] for name, setting in SETTINGS.items()}
        jobs = self._jobs()
        longest = max(len(job.prompt_token_ids) for job in jobs) + max(job.output_len for job in jobs)
        given = {"max_model_len": longest, **self.settings, **chosen}
        return {name: value for name, value in given.items() if name in uses(stage)}

    def _jobs(self) -> list[Job]:
        prompt, output = MIXES[self.values["mix"]]
        count, seed = self.workload["requests"], self.workload["seed"]
        return synthetic(count, arrivals("poisson", self.values["rate"], seed), prompt, output, seed)

    def _run_live(self) -> None:
        try:
            self.live()
        except ValueError as error:
            self.say(f"This cannot be run: {error}")

    def _compare(self) -> Compare:
        if self._picture is None:
            self._picture = Compare(*self.traces, font=self.font)
        elif self._picture.traces != self.traces:
            self._picture.traces = self.traces
        self._picture.font, self._picture.strips = self.font, not self.projector
        return self._picture

    def _show(self, traces: list[Trace], words: str) -> None:
        self.traces = traces
        self.say("")
        shares = [(summary(trace).mfu, summary(trace).mbu) for trace in traces]
        if all(mfu is not None and mbu is not None for mfu, mbu in shares):
            words += " Of the GPU's peaks " + "; ".join(
                f"{side} uses {mfu:.1%} of the FLOPs and {mbu:.0%} of the bandwidth"
                for side, (mfu, mbu) in zip("AB", shares, strict=True)
            )
            words += " while it is busy (modelled time)."
        self._told.value = f"<p>{words}</p><p>This lab again: <code>{escape(self.address)}</code></p>"
        self.stage.children = [self._compare()]
