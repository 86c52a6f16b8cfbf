"""A frame for teaching: controls above what they change, large letters for a projector, and R to begin anew."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import anywidget
import ipywidgets
from IPython.display import HTML, display
from traitlets import Bool

from minibatcher.views.predict import _reader_is_there

FONT = "18pt"  # on a projector
LABEL = {"description_width": "initial"}  # as wide as its words


class Keys(anywidget.AnyWidget):
    """What ipywidgets leave out. It hears R anywhere in its frame, except where a reader types; keeps JupyterLab from
    taking the frame's keys for its own (there R would make the cell a raw one); and fills the screen when `projector`
    is switched on by hand.
    """

    _esm = """
    const FOCUSABLE = "input, button, select, textarea, summary, a, [tabindex]";
    const TYPED_INTO = "select, textarea, input:not([type=range], [type=radio], [type=checkbox])";

    function render({ model, el }) {
      let frame = null;
      const mark = () => {
        for (const node of [frame, ...frame.querySelectorAll(FOCUSABLE)]) node.dataset.lmSuppressShortcuts = "true";
      };
      const marker = new MutationObserver(mark);
      const key = (event) => {
        const others = event.ctrlKey || event.metaKey || event.altKey;
        if (event.key.toLowerCase() !== "r" || others || event.target.matches(TYPED_INTO)) return;
        event.preventDefault();
        event.stopPropagation();
        model.send("reset");
      };
      const size = () => frame?.classList.toggle("mb-projector", model.get("projector"));
      const full = () => {
        size();
        if (model.get("projector") && navigator.userActivation?.isActive) frame?.requestFullscreen?.().catch(() => {});
        else if (!model.get("projector") && document.fullscreenElement === frame) document.exitFullscreen?.();
      };
      const left = () => { // by Escape, for example
        if (document.fullscreenElement || !model.get("projector")) return;
        model.set("projector", false);
        model.save_changes();
      };
      const settle = () => {
        frame = el.closest(".mb-frame");
        if (!frame) { // not in the page yet
          if (!closed) requestAnimationFrame(settle);
          return;
        }
        frame.tabIndex = -1; // a click on the picture leaves the focus here
        mark();
        marker.observe(frame, { childList: true, subtree: true });
        frame.addEventListener("keydown", key);
        frame.addEventListener("fullscreenchange", left);
        size();
      };
      let closed = false;
      model.on("change:projector", full);
      settle();
      return () => {
        closed = true;
        marker.disconnect();
        model.off("change:projector", full);
        frame?.removeEventListener("keydown", key);
        frame?.removeEventListener("fullscreenchange", left);
      };
    }

    export default { render };
    """
    _css = """
    .mb-frame { outline: none; padding: 4px 8px; gap: 4px; overflow: visible; }
    .mb-frame > * { flex: none; }
    .mb-frame .widget-html, .mb-frame .widget-html-content { height: auto; line-height: 1.4; white-space: normal; }
    .mb-frame .widget-html-content p { margin: 0; }
    .mb-frame h3 { margin: 0; font-size: 1.3em; line-height: 1.3; }
    .mb-frame .widget-html-content code { font-size: 0.85em; user-select: all; }
    .mb-frame ul { margin: 0; padding-left: 1.3em; }
    .mb-frame .widget-html-content table { border-collapse: collapse; margin: 2px 0; line-height: 1.3;
                                           font-size: inherit; color: inherit; }
    .mb-frame .widget-html-content :is(td, th) { padding: 1px 1em 1px 0; text-align: right; font-size: inherit; }
    .mb-frame .widget-html-content :is(td, th):first-child { text-align: left; }
    .mb-frame .widget-image { width: 100%; max-width: 1120px; height: auto; align-self: center; }
    .mb-frame .mb-sorry { font-weight: 600; }
    .mb-frame.mb-projector { width: 1280px; max-width: 100%; font-size: 18pt; --jp-widgets-font-size: 18pt;
      --jp-ui-font-size1: 18pt; --jp-widgets-inline-height: 40px; --jp-widgets-inline-margin: 3px;
      background: var(--jp-layout-color0, Canvas); color: var(--jp-ui-font-color1, CanvasText); }
    .mb-frame.mb-projector h3 { font-size: 1.1em; }
    .mb-frame.mb-projector .widget-button, .mb-frame.mb-projector .widget-toggle-button { width: max-content; }
    .mb-frame.mb-projector .widget-radio-box label { display: flex; flex-direction: row-reverse;
      justify-content: flex-end; align-items: center; gap: 8px; line-height: 1.5;
      height: auto; font-size: 18pt; }
    .mb-frame.mb-projector .widget-radio-box { height: auto; }
    .mb-frame:fullscreen { width: 100%; height: 100%; overflow: auto; flex-wrap: nowrap; }
    """

    projector = Bool(False).tag(sync=True)


class Frame:
    """A title, controls, and below them what `play` shows for the controls' values; a subclass says what that is.

    controls: by the names that they have in Python. buttons: more of them, beside Reset and Projector. What `play`
    refuses with ValueError is said in the frame, and the picture before it stays.
    """

    def __init__(
        self,
        title: str,
        controls: Mapping[str, Any],
        values: Mapping[str, Any],
        *,
        buttons: Sequence[Any] = (),
        projector: bool = False,
    ) -> None:
        self.title = title
        self.controls = dict(controls)
        for name, value in values.items():
            put(self.controls, name, value)
        self._opening = self.values
        self._quiet = False
        self.keys = Keys(projector=projector)
        self.keys.on_msg(lambda *_: self.reset())
        self.said = ipywidgets.HTML()
        self.above = ipywidgets.VBox()  # between the controls and the picture
        self.stage = ipywidgets.VBox()  # the picture
        self.below = ipywidgets.VBox()
        reset = ipywidgets.Button(description="Reset", tooltip="Begin anew (key R)", layout={"width": "auto"})
        reset.on_click(lambda _: self.reset())
        switch = ipywidgets.ToggleButton(description="Projector", tooltip="Large letters", layout={"width": "auto"})
        switch.value = projector
        ipywidgets.link((self.keys, "projector"), (switch, "value"))
        wrap = {"flex_flow": "row wrap", "align_items": "center", "overflow": "visible"}
        heading = ipywidgets.HTML(f"<h3>{title}</h3>", layout={"flex": "1 1 auto", "width": "auto"})
        self.widget = ipywidgets.VBox(  # for a layout of one's own; a notebook shows it by itself
            [
                ipywidgets.HBox([heading, *buttons, reset, switch, self.keys], layout=wrap),
                ipywidgets.HBox(list(self.controls.values()), layout=wrap),
                self.above,
                self.said,
                self.stage,
                self.below,
            ]
        )
        self.widget.add_class("mb-frame")
        for control in self.controls.values():
            control.observe(lambda _: self._changed(), "value")
        self.keys.observe(lambda _: self._changed(), "projector")

    @property
    def values(self) -> dict[str, Any]:
        return {name: control.value for name, control in self.controls.items()}

    @property
    def projector(self) -> bool:
        return self.keys.projector

    @property
    def font(self) -> str:
        return FONT if self.projector else ""

    def line(self, call: str, *first: str, **more: Any) -> str:
        """The Python that opens this frame as it stands."""
        told = [f"{n}={json.dumps(v) if isinstance(v, str) else repr(v)}" for n, v in {**self.values, **more}.items()]
        return f"{call}({', '.join([*first, *told, *(['projector=True'] if self.projector else [])])})"

    def play(self) -> None:
        """Show what the controls say. Raises ValueError for values that cannot be shown."""
        raise NotImplementedError

    def shown(self) -> Iterable[Any]:
        """What stands in a notebook that no reader looks at while it runs: texts (HTML) and pictures."""
        raise NotImplementedError

    def reset(self) -> None:
        """For the next reader: the controls as they were at the beginning."""
        self._quiet = True
        for name, value in self._opening.items():
            self.controls[name].value = value
        self._quiet = False
        self._changed()

    def say(self, words: str) -> None:
        self.said.value = f'<p class="mb-sorry" role="status">{escape(words)}</p>' if words else ""

    def _changed(self) -> None:
        if self._quiet:
            return
        try:
            self.play()
        except ValueError as error:
            self.say(f"This cannot be shown: {error}")

    def _ipython_display_(self) -> None:
        if _reader_is_there():
            display(self.widget)
        else:
            for item in self.shown():
                display(HTML(item) if isinstance(item, str) else item)


def put(controls: Mapping[str, Any], name: str, value: Any) -> None:
    """Set a control. Raises ValueError, naming what is allowed, for an unknown name or a value that it cannot have."""
    if name not in controls:
        raise ValueError(f"unknown control {name}={value!r}: choose from {', '.join(controls)}")
    control = controls[name]
    options = getattr(control, "options", None)
    if options is not None and value not in options:
        raise ValueError(f"{name}={value!r} is not allowed: choose from {', '.join(map(str, options))}")
    if options is None and not isinstance(value, str):
        raise ValueError(f"{name}={value!r} is not allowed: write a text such as {control.value!r}")
    control.value = value


def slider(label: str, options: Sequence[Any], value: Any) -> Any:
    """One of a few values, in their order."""
    layout = {"width": "auto", "min_width": "20em", "flex": "0 1 26em"}
    return ipywidgets.SelectionSlider(description=label, options=options, value=value, layout=layout, style=LABEL)


def choice(label: str, options: Sequence[str], value: str) -> Any:
    """One of a few names."""
    layout = {"width": "auto"}
    return ipywidgets.Dropdown(description=label, options=options, value=value, layout=layout, style=LABEL)


def text(label: str, value: str) -> Any:
    """Anything; it counts when Enter is pressed or the field is left."""
    return ipywidgets.Text(description=label, value=value, continuous_update=False, style=LABEL)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """HTML."""

    def row(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{row('th', heads)}{''.join(row('td', cells) for cells in rows)}</table>"
