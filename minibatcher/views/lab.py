"""A lab: controls over a run that is made anew whenever one of them moves."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import ipywidgets

from minibatcher.trace import Trace
from minibatcher.views.widget import Timeline


class Lab(ipywidgets.VBox):
    """Calls a function with the controls' values, and shows what it returns.

        def run(budget):
            trace = build_simulated("chunked", max_num_batched_tokens=budget).run(requests())
            return trace, f"{len(trace)} steps"

        Lab(run, {"x": "time"}, budget=ipywidgets.SelectionSlider(options=[64, 128, 256], value=128))

    make: takes each control's value by name, and returns a trace (shown as a timeline, with the traits of `look`) or a
    picture (what has `_repr_png_`), and a sentence about it. A ValueError is said in the sentence's place, and what
    was shown before stays. A control without a description is labelled with its name. A notebook that was saved shows
    the picture of the state that it was left in.
    """

    def __init__(
        self,
        make: Callable[..., tuple[Any, str]],
        look: Mapping[str, Any] | None = None,
        **controls: ipywidgets.DOMWidget,
    ) -> None:
        self._make = make
        self._lab_controls = controls
        self._image = ipywidgets.Image(format="png", layout={"max_width": "100%"})
        self._timeline = Timeline(**{"cursor": None, **(look or {})})
        self._words = ipywidgets.HTML()
        self.words = ""
        self.shown: Any = None
        for name, control in controls.items():
            control.description = control.description or name.replace("_", " ")
            control.style.description_width = "initial"
            control.observe(self._update, "value")
        row = ipywidgets.Box(list(controls.values()), layout={"flex_flow": "row wrap"})
        super().__init__([row, self._words])
        self._update()

    @property
    def values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self._lab_controls.items()}

    def _update(self, _: Any = None) -> None:
        try:
            self.shown, self.words = self._make(**self.values)
        except ValueError as error:
            self.words = f"Refused: {error}"
        else:
            view = self._timeline if isinstance(self.shown, Trace) else self._image
            if view is self._timeline:
                view.traces = [self.shown]
            else:
                view.value = self.shown._repr_png_()
            if view not in self.children:  # type: ignore[has-type]
                self.children = [*self.children[:2], view]  # type: ignore[has-type]
        self._words.value = f'<div style="line-height: 1.4">{escape(self.words)}</div>'

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data["text/plain"] = f"{', '.join(f'{name}={value}' for name, value in self.values.items())}: {self.words}"
        if self.shown is not None:
            picture = self._timeline.picture() if isinstance(self.shown, Trace) else self.shown
            data["image/png"] = b64encode(picture._repr_png_()).decode()
        return data, metadata
