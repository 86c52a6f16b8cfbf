// Draws one trace, or two on one scale, with one cursor.
//
// A feed (feed.py) is {traces: [{lines, notes, name, title, alt}], differences, states, looks}: `lines` is what
// Trace.save writes, `notes` is for each step how long the device was busy and what a reader is told, the looks are
// those of states.py. widget.py feeds it in a notebook, also while an engine runs; html.py in a page.
//
//     Run       a trace, read: its records, lanes and requests, the state of each cell, who owns which block
//     Panel     one run on the page: the picture with its strips
//     BlockMap  the pool of one run at the cursor
//     View      all of it: the controls, the cursor, one or two panels, their words and tables
//
// Cells are the pixels of a small picture that is drawn enlarged: there is no DOM node per cell.

const FAR = 10; // steps of PageUp and PageDown
const HATCHES = { // lines in a tile of 8 by 8; the keys are matplotlib's, as in states.py
  "|": [[2, 0, 2, 8], [6, 0, 6, 8]],
  "/": [[-2, 2, 2, -2], [0, 8, 8, 0], [6, 10, 10, 6]],
  "\\": [[-2, 6, 2, 10], [0, 0, 8, 8], [6, -2, 10, 2]],
  "x": [[0, 8, 8, 0], [0, 0, 8, 8]],
  ".": [[2, 2, 3, 2], [6, 6, 7, 6]],
};

class Run {
  constructor({ lines, notes, ...words }) {
    const [meta, ...rest] = lines.split("\n");
    Object.assign(this, words, { meta: JSON.parse(meta), records: [], busy: 0 });
    this.requests = new Map(); // id -> {row, lane, arrival, end}, in order of appearance
    this.poolBlocks = this.meta.settings?.num_blocks ?? 0;
    this.usedBlocks = 0; // up to the highest that was ever taken
    this.append(rest, notes);
  }

  append(lines, notes) {
    notes.forEach(([busy, ...told], i) => this.add({ ...JSON.parse(lines[i]), busy, told }));
    this.grids = {};
  }

  add(record) {
    this.begin ??= record.t0;
    for (const [id, time] of record.arrived) {
      this.request(id).arrival = time;
      this.begin = Math.min(this.begin, time);
    }
    // A preemption is marked in the lane where its victim was last at work; a yield at the end of a turn is none.
    const victims = record.preempted.filter(([, , cause]) => cause !== "turn");
    record.victims = victims.map(([id]) => ({ id, lane: this.requests.get(id)?.lane }));
    record.tokens = {};
    for (const [id, lane, kind, tokens] of record.work) {
      this.request(id).lane = lane;
      this.lanes = Math.max(this.lanes, lane + 1);
      record.tokens[kind] = (record.tokens[kind] ?? 0) + tokens;
    }
    for (const [id] of record.finished) this.request(id).end = record.t1;
    for (const [, , blocks] of record.blocks) this.usedBlocks = Math.max(this.usedBlocks, ...blocks.map((b) => b + 1));
    record.queue = record.waiting ? 1 + record.waiting[2] : 0;
    this.busy += record.busy;
    record.share = share(record.busy, record.t1 - (this.records.at(-1)?.t1 ?? record.t0));
    this.records.push(record);
  }

  request(id) {
    if (!this.requests.has(id)) this.requests.set(id, { row: this.requests.size });
    return this.requests.get(id);
  }

  start(step) { return this.records[step].t0 - this.begin; }
  stop(step) { return this.records[step].t1 - this.begin; }
  get seconds() { return this.records.length ? this.stop(this.records.length - 1) : 0; }

  // What is said of a step: when it is, what is done, and who waits and why.
  told(step, at) {
    const record = this.records[step], last = this.records.length - 1;
    if (!record) return [last >= 0 && at > 0 ? `All is done since step ${last}.` : "No step yet.", "", ""];
    const planned = record.schedule_s ? `, scheduled in ${duration(record.schedule_s)}` : "";
    const times = `at ${duration(this.start(step))}: ${duration(record.t1 - record.t0)} long${planned}`;
    const all = percent(share(this.busy, this.records[last].t1 - this.records[0].t0));
    return [`Step ${step} (the last is ${last}), ${times}. Device busy ${percent(record.share)}, in all ${all}.`,
      ...record.told];
  }

  names(by) {
    return by === "lane" ? Array.from({ length: this.lanes }, (_, lane) => `${lane}`) : [...this.requests.keys()];
  }

  // The state of each row in each step, row by row. code: name of a state -> its number. A request waits from its
  // arrival to its end, except where it computes or has given way; a lane is idle where it does not compute.
  grid(by, code) {
    if (this.grids[by]) return this.grids[by];
    const steps = this.records.length, inLanes = by === "lane", cells = new Uint8Array(this.names(by).length * steps);
    const row = (id, lane) => (inLanes ? lane : this.requests.get(id)?.row); // none if the trace never saw it at work
    const rest = (id, state, step) => {
      if (!inLanes && row(id) !== undefined) cells.fill(code[state], row(id) * steps + step, (row(id) + 1) * steps);
    };
    for (const [id, { arrival }] of this.requests) if (arrival === undefined) rest(id, "waiting", 0);
    this.records.forEach((record, step) => {
      for (const [id] of record.arrived) rest(id, "waiting", step);
      for (const { id } of record.victims) rest(id, "preempted", step);
      for (const id of record.resumed) rest(id, "waiting", step);
      for (const [id] of record.finished) rest(id, "idle", step);
      // A row of padding and prompt is prefill: a row is wasted only when nothing in it is of use.
      const useful = record.work.filter(([, , kind]) => kind !== "wasted"), ids = new Set(useful.map(([id]) => id));
      const wasted = record.work.filter(([id, , kind]) => kind === "wasted" && !ids.has(id));
      for (const [id] of wasted) rest(id, "idle", step); // its request has ended, maybe before the trace began
      for (const [id, lane, kind] of [...wasted, ...useful]) cells[row(id, lane) * steps + step] = code[kind];
    });
    return this.grids[by] = cells;
  }

  // Who owns which blocks while a step runs: after those who gave way, before those who end in it leave.
  owners(step) {
    const tables = new Map(), written = new Map();
    this.records.slice(0, step + 1).forEach((record, i) => {
      const contexts = new Map(); // a request may have two entries in a step: computed again, and new
      for (const [id, , , , context] of record.work) contexts.set(id, Math.max(context, contexts.get(id) ?? 0));
      for (const [id, context] of contexts) written.set(id, context);
      for (const [id, move, blocks] of record.blocks) {
        const table = tables.get(id) ?? [];
        if (move === "take") tables.set(id, [...table, ...blocks]);
        else if (i < step || !contexts.has(id)) tables.set(id, table.filter((block) => !blocks.includes(block)));
      }
    });
    const owned = [...tables].filter(([, blocks]) => blocks.length);
    const all = owned.map(([id, blocks]) => ({ id, blocks, tokens: written.get(id) ?? 0 }));
    return all.sort((a, b) => this.request(a.id).row - this.request(b.id).row);
  }
}

// -- helpers ----------------------------------------------------------------------------------------------------------

const percent = (share) => `${+(100 * share).toPrecision(2)}%`;
const duration = (s) => (Math.abs(s) >= 1 ? `${+s.toPrecision(3)} s` : `${+(1000 * s).toPrecision(3)} ms`);
const share = (busy, seconds) => (seconds > 0 ? Math.min(1, busy / seconds) : +(busy > 0));
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const rgb = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
const isLetter = (sign) => /[a-z]/i.test(sign);
const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  // JupyterLab acts on keys (`b` inserts a cell) unless the element that has the focus says so itself.
  if (node.tabIndex >= 0 || tag === "summary") node.setAttribute("data-lm-suppress-shortcuts", "true");
  node.append(...children);
  return node;
}

function table(heads, rows, numbers) { // numbers: which columns are to the right
  const row = (tag, cells) => element("tr", {}, ...cells.map((cell, i) =>
    element(tag, { className: numbers.includes(i) ? "number" : "" }, cell)));
  const body = rows.map((cells) => row("td", cells));
  return element("table", {}, element("thead", {}, row("th", heads)), element("tbody", {}, ...body));
}

// A cleared context in CSS pixels, on a canvas as fine as the screen.
function sheet(canvas, width, height, em) {
  const ratio = window.devicePixelRatio || 1, [w, h] = [width, height].map((size) => Math.round(size * ratio));
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  Object.assign(context, { font: `${0.85 * em}px system-ui, sans-serif`, textBaseline: "middle", lineWidth: 1 });
  return context;
}

function text(context, words, x, y, align = "center") {
  context.textAlign = align;
  context.fillText(words, x, y);
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

// Hue alone carries nothing: a hatch comes on top. In a narrow cell it begins at the corner, so that each has a line.
function fill(context, { colour, hatch }, x, y, width, height) {
  hatch?.setTransform(new DOMMatrix().translate(width < 8 ? x : 0, 0));
  for (const style of [colour, width >= 2 && height >= 3 && hatch]) {
    if (!style) continue;
    context.fillStyle = style;
    context.fillRect(x, y, width, height);
  }
}

function hatched(kind, colour) {
  const tile = element("canvas", { width: 8, height: 8 }), context = tile.getContext("2d");
  context.strokeStyle = colour;
  for (const ends of HATCHES[kind]) line(context, ...ends);
  return context.createPattern(tile, "repeat");
}

function inkOn(colour) { // black or white, whichever is easier to read
  const [red, green, blue] = rgb(colour);
  return 0.30 * red + 0.59 * green + 0.11 * blue > 0.45 * 255 ? "#000000" : "#FFFFFF";
}

function roundUp(x) { // to 1, 2 or 5 times a power of ten
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10].map((digit) => digit * power).find((size) => size >= 0.999 * x);
}

function isDark() {
  const { body, documentElement: html } = document;
  if (body.hasAttribute("data-jp-theme-light")) return body.getAttribute("data-jp-theme-light") === "false"; // Jupyter
  if (/vscode-(dark|light|high)/.test(body.className)) return !/vscode-\S*light/.test(body.className);
  if (html.hasAttribute("theme")) return html.getAttribute("theme") === "dark"; // Colab
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

// One run on the page: lanes or requests, and strips of counts on the same axis.
class Panel {
  constructor(view, run) {
    Object.assign(this, { view, run });
    this.title = element("div", { className: "title" });
    this.picture = element("canvas", { className: "picture", role: "img", ariaLabel: run.alt });
    this.cursor = element("canvas", { className: "cursor", ariaHidden: "true" });
    this.stack = element("div", { className: "stack" }, this.picture, this.cursor);
    this.cursor.onpointerdown = (event) => { this.cursor.setPointerCapture(event.pointerId); this.point(event, true); };
    this.cursor.onpointermove = (event) => { if (event.buttons & 1) this.point(event, false); };
  }

  // Sizes in CSS pixels, from the size of the letters and the number of rows.
  layout() {
    const { em, ui, panels } = this.view;
    this.names = this.run.names(ui.by).map((name) => name.slice(0, 12));
    // All is to fit on a projector, so many rows are low.
    const height = Math.min(1.35 * em, Math.min(24 * em, 0.4 * window.innerHeight) / panels.length / this.names.length);
    this.rowHeight = height > 3 ? Math.floor(height) : height;
    this.bottom = this.lanesHeight = Math.max(1, Math.round(this.rowHeight * this.names.length));
    this.strips = this.view.ui.strips ? this.makeStrips() : [];
    for (const strip of this.strips) {
      strip.y = this.bottom + 6;
      strip.height = Math.round((strip.name === "device busy" ? 1 : 2.2) * em);
      this.bottom = strip.y + strip.height;
    }
    this.height = this.bottom + Math.round(1.6 * em);
  }

  makeStrips() {
    const { records } = this.run, most = (of) => records.reduce((max, record) => Math.max(max, of(record)), 0);
    const kinds = ["decode", "prefill", "recompute", "wasted"];
    const tokens = kinds.map((name) => ({ name, of: (record) => record.tokens[name] ?? 0 }));
    const queue = { name: "waiting", of: (record) => record.queue };
    const used = { name: "KV used", of: ({ kv }) => kv?.used ?? 0 };
    const empty = { name: "KV reserved", of: ({ kv }) => (kv ? kv.reserved + kv.internal : 0) };
    // By steps, its share of the time since the step before; by time, when it is busy. A gap that is too short to show
    // makes its column lower.
    const busy = { name: "device busy", of: ({ share }, step) => (this.isApart(this.busy, step) ? 1 : share) };
    const budget = most((record) => record.budget ?? 0), pool = most(({ kv }) => kv?.total ?? 0);
    const top = most((record) => tokens.reduce((sum, { of }) => sum + of(record), 0));
    return [
      { name: "tokens", layers: tokens, top: Math.max(budget, top), limit: budget, line: "budget", dash: [2, 3] },
      { name: "waiting", layers: [queue], top: most(queue.of) },
      { name: "KV tokens", layers: [used, empty], top: pool, limit: pool, line: "KV capacity", dash: [6, 4] },
      { name: "device busy", layers: [busy], top: 1 },
    ].filter(({ name }) => pool || name !== "KV tokens");
  }

  paint() {
    const { view, run } = this, { ui, left, right, em } = view;
    const context = sheet(this.picture, view.width, this.height, em);
    this.columns = this.place((step) => run.start(step));
    this.busy = this.place((step) => run.stop(step) - run.records[step].busy);
    fill(context, view.look("idle"), left, 0, right - left, this.lanesHeight);
    if (run.records.length) this.paintCells(context, run.grid(ui.by, view.code));
    for (const strip of this.strips) this.paintStrip(context, strip);
    this.paintAxis(context);
    const every = Math.ceil((1.05 * em) / this.rowHeight);
    this.names.forEach((name, row) => {
      if (row % every === 0) text(context, name, left - 5, Math.max(0.5 * em, this.middle(row)), "right");
    });
  }

  // Where the steps lie, in whole pixels. A gap of less than one is closed: it would show whole or not at all.
  place(start) {
    const { run, view: { ui, toX } } = this;
    const span = (step) => (ui.x === "step" ? [step, step + 1] : [start(step), run.stop(step)]).map(toX);
    return run.records.map((_, step) => {
      const [from, to] = span(step), before = step ? span(step - 1)[1] : -1;
      return [from - before < 1 ? before : from, to].map(Math.round);
    });
  }

  isApart(columns, step) { return columns[step][0] > (step ? columns[step - 1][1] : this.view.left); }

  rowOf(id, lane) { return this.view.ui.by === "lane" ? lane : this.run.requests.get(id)?.row; }
  middle(row) { return (row + 0.5) * this.rowHeight + 0.5; }

  paintCells(context, cells) {
    const { view, run, rowHeight, columns } = this, { ui, left, right } = view;
    const rows = this.names.length, steps = columns.length;
    if (ui.x === "time" && ui.by === "request") { // one waits from its arrival on, also within a step and between two
      for (const { row, arrival = run.begin, end = run.begin + run.seconds } of run.requests.values()) {
        const [from, to] = [arrival, end].map((time) => view.toX(time - run.begin));
        fill(context, view.look("waiting"), from, row * rowHeight, to - from, rowHeight);
      }
    }
    const small = element("canvas", { width: steps, height: rows }), pixels = new ImageData(steps, rows);
    // A pixel as memory has it; what is idle lets the ground show.
    const bytes = view.feed.states.flatMap((state, code) => [...rgb(state[view.theme]), code ? 255 : 0]);
    const memory = new Uint32Array(pixels.data.buffer), palette = new Uint32Array(Uint8Array.from(bytes).buffer);
    cells.forEach((code, i) => { memory[i] = palette[code]; });
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = false;
    columns.forEach(([from, to], step) =>
      context.drawImage(small, step, 0, 1, rows, from, 0, Math.max(1, to - from), this.lanesHeight));
    context.save();
    if (rowHeight >= 3) this.paintSigns(context, cells);
    context.restore();
    context.fillStyle = view.paper;
    const apart = rowHeight >= 6 ? rows : 0;
    for (let row = 1; row < apart; row++) context.fillRect(left, row * rowHeight - 0.5, right - left, 1);
    const arm = clamp(rowHeight / 3, 3, 0.4 * view.em);
    run.records.forEach(({ victims }, step) => victims.forEach(({ id, lane }) => {
      const row = this.rowOf(id, lane);
      if (row !== undefined) view.cross(context, columns[step][0], this.middle(row), arm);
    }));
  }

  // A cell with room for it has its state's letter, a smaller one its hatch.
  paintSigns(context, cells) {
    const { view, rowHeight, columns } = this, looks = view.feed.states.map(({ name }) => view.look(name));
    // A large font gives in, down to the width of a column.
    const room = Math.min(0.8 * view.em, Math.max(10, 0.95 * (columns[0][1] - columns[0][0])));
    context.font = `${1.06 * room}px system-ui, sans-serif`;
    cells.forEach((code, i) => {
      const [from, to] = columns[i % columns.length], row = Math.floor(i / columns.length);
      const { sign } = view.feed.states[code], { colour, hatch } = looks[code];
      if (isLetter(sign) && Math.min(rowHeight, to - from) >= room) {
        context.fillStyle = inkOn(colour);
        text(context, sign, (from + to) / 2, this.middle(row));
      } else if (hatch) fill(context, { hatch }, from, row * rowHeight, to - from, rowHeight);
    });
  }

  paintStrip(context, { name, layers, limit, dash, y: top, height }) {
    const { view, run } = this, { left, right, ink } = view, scale = view.tops[name], alone = name === "device busy";
    const columns = alone ? this.busy : this.columns;
    const toY = (value) => top + height - (value / scale) * height, base = new Float64Array(run.records.length);
    fill(context, view.look("idle"), left, top, right - left, height);
    for (const layer of layers) {
      run.records.forEach((record, step) => {
        const value = layer.of(record, step), [from, to] = columns[step], y = toY(base[step]);
        if (!value) return;
        base[step] += value;
        fill(context, view.look(layer.name), from, toY(base[step]), Math.max(1, to - from), y - toY(base[step]));
      });
    }
    Object.assign(context, { fillStyle: ink, strokeStyle: ink, lineWidth: 1 });
    context.setLineDash(dash ?? []);
    if (limit) line(context, left, toY(limit) + 0.5, right, toY(limit) + 0.5);
    context.setLineDash([]);
    text(context, name, left - 5, top + (alone ? 0.5 : 0.32) * height, "right");
    if (alone) return; // a share needs no scale
    context.globalAlpha = 0.7;
    text(context, `to ${scale}`, left - 5, top + 0.76 * height, "right");
    context.globalAlpha = 1;
  }

  paintAxis(context) {
    const { view, bottom } = this, { left, right, end, em, ui } = view, y = bottom + 0.85 * em;
    const inSteps = ui.x === "step", at = (value) => view.toX(inSteps ? value + 0.5 : value);
    const size = Math.max(roundUp((end * 4.5 * em) / (right - left)), inSteps ? 1 : 0);
    context.fillStyle = view.ink;
    for (let tick = 0; at(tick * size) <= right; tick++) {
      const words = inSteps ? `${tick * size}` : duration(tick * size), half = context.measureText(words).width / 2;
      context.fillRect(at(tick * size) - 0.5, bottom, 1, 3);
      text(context, words, clamp(at(tick * size), left + half, right - half), y);
    }
    text(context, ui.x, left - 10, y, "right");
  }

  // The cursor and the picked request's cells, on a canvas above the picture.
  mark(step) {
    const { view, run, rowHeight, bottom } = this, { left, right, ui } = view;
    const context = sheet(this.cursor, view.width, this.height, view.em);
    context.fillStyle = view.ink;
    if (run.requests.has(ui.picked)) {
      run.records.forEach(({ work }, i) => {
        const mine = work.find(([id]) => id === ui.picked), [from, to] = this.columns[i];
        if (!mine) return;
        const row = this.rowOf(ui.picked, mine[1]);
        for (const y of [row, row + 1]) context.fillRect(from, y * rowHeight - 1, to - from, 2);
      });
    }
    const [from, to] = this.columns[step] ?? [view.at, view.at].map(view.toX).map(Math.round);
    context.globalAlpha = 0.16;
    context.fillRect(from, 0, to - from, bottom);
    context.globalAlpha = 1;
    for (const x of [from - 1, Math.max(to - 1, from + 1)]) context.fillRect(clamp(x, left - 1, right), 0, 1.5, bottom);
  }

  // A pointer on the picture moves the cursor; a click also picks the request whose cell it hits.
  point(event, pick) {
    const { view, run } = this, row = Math.floor(event.offsetY / this.rowHeight);
    view.seek(view.fromX(event.offsetX));
    view.scrubber.focus({ preventScroll: true });
    if (!pick || row >= this.names.length) return;
    const hit = run.records[view.stepOf(run)]?.work.find(([, lane]) => lane === row);
    view.change({ picked: (view.ui.by === "request" ? [...run.requests.keys()][row] : hit?.[0]) ?? null });
  }
}

// The pool at the cursor: physical blocks by number, in their owners' colours.
class BlockMap {
  constructor(view, run) {
    Object.assign(this, { view, run });
    this.map = element("canvas", { className: "blocks", role: "img" });
    this.words = element("p");
    this.chips = element("div", { className: "chips" });
    this.map.onclick = (event) => {
      const column = Math.floor((event.offsetX - this.left) / this.w);
      const block = column + this.columns * Math.floor((event.offsetY - this.top) / this.h);
      const owner = column >= 0 && this.held.find(({ blocks }) => blocks.includes(block));
      view.change({ picked: owner?.id ?? null });
    };
    this.node = element("div", {}, this.map, this.words, this.chips);
  }

  corner(block) { return [this.left + (block % this.columns) * this.w, Math.floor(block / this.columns) * this.h]; }

  paint(step) {
    const { view, run } = this, { em, ink, paper } = view, size = run.meta.settings.block_size;
    const held = this.held = run.records[step] ? run.owners(step) : [];
    // As in figure.py: all blocks up to the last that was ever taken, in rows of a power of two.
    const width = this.node.clientWidth, used = Math.max(1, run.usedBlocks), left = this.left = 3.6 * em;
    const columns = Math.min(run.poolBlocks, Math.max(16, 2 ** Math.ceil(Math.log2(Math.sqrt(2 * used)))));
    const shown = Math.min(run.poolBlocks, columns * Math.ceil(used / columns)), rows = Math.ceil(shown / columns);
    const w = (width - left) / columns, h = Math.min(w, 1.7 * em, Math.max(3, (24 * em) / rows));
    Object.assign(this, { columns, w, h });
    const context = sheet(this.map, width, rows * h + 2, em), gap = w > 8 ? 1 : 0, box = [w - gap, h - gap];
    Object.assign(context, { textAlign: "center", lineJoin: "round" });
    this.map.style.width = `${width}px`;
    for (let block = 0; block < shown; block++) fill(context, view.look("idle"), ...this.corner(block), ...box);
    for (const { id, blocks, tokens } of held) blocks.forEach((block, logical) => {
      const [x, y] = this.corner(block), colour = view.owner(run, id), written = clamp(tokens / size - logical, 0, 1);
      context.globalAlpha = 0.4;
      fill(context, { colour, hatch: view.look("KV reserved").hatch }, x, y, ...box);
      context.globalAlpha = 1;
      fill(context, { colour }, x, y, box[0] * written, box[1]);
      const label = `${id}:${logical}`, dark = written > 0.5;
      if (h < em || context.measureText(label).width > w - 3) return;
      Object.assign(context, { fillStyle: dark ? "#000000" : ink, strokeStyle: dark ? colour : paper, lineWidth: 3 });
      if (written % 1) context.strokeText(label, x + w / 2, y + h / 2); // it stands on two grounds
      text(context, label, x + w / 2, y + h / 2);
    });
    context.fillStyle = ink;
    for (let row = 0, every = Math.ceil((1.1 * em) / h); row < rows; row += every) {
      text(context, row * columns, left - 5, row * h + Math.max(h, em) / 2, "right");
    }
    const picked = held.find(({ id }) => id === view.ui.picked);
    if (picked) this.paintMapping(context, picked.blocks);
    this.tell(held, picked, size, shown);
  }

  // The picked request's blocks are framed, and joined in the order of its tokens.
  paintMapping(context, blocks) {
    const { w, h } = this;
    Object.assign(context, { strokeStyle: this.view.ink, lineWidth: 1.5 });
    context.beginPath();
    for (const [x, y] of blocks.map((block) => this.corner(block))) {
      context.lineTo(x + w / 2, y + 0.8 * h);
      context.strokeRect(x + 0.5, y + 0.5, w - 2, h - 2);
    }
    context.stroke();
  }

  tell(held, picked, size, shown) {
    const { run, view } = this, taken = held.reduce((sum, { blocks }) => sum + blocks.length, 0);
    const said = [`${taken} of ${run.poolBlocks} blocks of ${size} tokens are taken; dotted: not written.`];
    if (shown < run.poolBlocks) said.push(`Blocks ${shown} to ${run.poolBlocks - 1} were never used and are left out.`);
    if (picked) {
      const pairs = picked.blocks.map((block, logical) => `${logical} to ${block}`);
      const more = pairs.length > 8 ? ` and ${pairs.length - 8} more` : "";
      said.push(`Request ${picked.id}: logical block ${pairs.slice(0, 8).join(", ")}${more};`);
      said.push(`${picked.tokens} of ${picked.blocks.length * size} slots are written.`);
    } else if (held.length) said.push("Pick one of these requests to see where its blocks lie.");
    this.words.textContent = this.map.ariaLabel = said.join(" ");
    this.chips.replaceChildren(...held.slice(0, 40).map(({ id }) => view.pickButton(id, view.owner(run, id))));
  }
}

// All of it.
class View {
  // ui: what a reader can change, and font and live. changed(ui) is told what a reader did change.
  constructor(root, feed, ui = {}, changed = () => {}) {
    const cursor = null /* at the end */, parts = ["timeline"], strips = true;
    this.ui = { by: "lane", x: "step", cursor, picked: null, parts, strips, font: "", live: false, ...ui };
    Object.assign(this, { root, changed, frame: 0, timer: 0, drawnAt: 0 });
    root.className = "mb";
    Object.assign(root, { role: "group", ariaLabel: "Timeline of a trace" });
    this.build();
    this.load(feed);
    const redraw = () => this.draw();
    // JupyterLab takes cells that are off screen out of the page.
    this.observers = [new ResizeObserver(redraw), new IntersectionObserver(redraw)];
    for (const observer of this.observers) observer.observe(root);
    const themes = new MutationObserver(() => { if (isDark() !== (this.theme === "dark")) redraw(); });
    for (const node of [document.body, document.documentElement]) themes.observe(node, { attributes: true });
    this.observers.push(themes);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.scheme.onchange = redraw;
  }

  close() {
    for (const observer of this.observers) observer.disconnect();
    this.scheme.onchange = null;
    this.play(false);
    cancelAnimationFrame(this.frame);
  }

  build() {
    const choice = (key, name, options) => {
      const select = element("select", {}, ...options.map((option) => element("option", {}, option)));
      select.onchange = () => this.change({ [key]: select.value });
      this[key] = select;
      return element("label", {}, `${name} `, select);
    };
    const fold = (key, name) => {
      const details = element("details", {}, element("summary", {}, name), element("div", { className: "sides" }));
      details.ontoggle = () => { // also called when the program opens it
        const others = this.ui.parts.filter((part) => part !== key);
        if (details.open !== this.has(key)) this.change({ parts: details.open ? [...others, key] : others });
      };
      return details;
    };
    this.player = element("button", { type: "button", onclick: () => this.play(!this.timer) });
    this.legend = element("div", { className: "legend" });
    this.stage = element("div");
    this.scrubber = element("input", { type: "range", min: 0, ariaLabel: "Step that is described" });
    this.scrubber.oninput = () => this.seek(+this.scrubber.value);
    this.scrubber.onkeydown = (event) => this.key(event);
    this.below = element("div", { className: "sides" });
    this.choices = [choice("by", "rows", ["lane", "request"]), choice("x", "axis", ["step", "time"])];
    this.folds = { table: fold("table", "Table of the step"), blocks: fold("blocks", "Blocks of the pool") };
    const bar = element("div", { className: "bar" }, ...this.choices, this.player, this.legend);
    this.root.replaceChildren(bar, this.stage, this.scrubber, this.below, this.folds.table, this.folds.blocks);
    this.play(false);
  }

  load(feed) {
    Object.assign(this, { feed, looks: {} });
    this.code = Object.fromEntries(feed.states.map(({ name }, code) => [name, code]));
    this.panels = feed.traces.map((trace) => new Panel(this, new Run(trace)));
    for (const panel of this.panels) {
      const { name, title, meta } = panel.run, modelled = meta.clock === "virtual" ? " (modelled time)" : "";
      panel.title.textContent = this.label(panel, (this.ui.live ? name : title) + modelled); // numbers when all is done
      panel.words = element("div", { className: "words", role: "status" });
      panel.table = element("div", { className: "step" });
      panel.blocks = new BlockMap(this, panel.run);
    }
    this.stage.replaceChildren(...this.panels.flatMap((panel) => [panel.title, panel.stack]));
    this.below.replaceChildren(...this.panels.map((panel) => panel.words));
    const numbers = table(["", "A", "B", "from A to B"], feed.differences, [1, 2, 3]);
    if (feed.differences.length) this.below.append(element("div", {}, numbers));
    this.folds.table.lastChild.replaceChildren(...this.panels.map((panel) => panel.table));
    this.folds.blocks.lastChild.replaceChildren(...this.panels.map((panel) => panel.blocks.node));
    this.folds.blocks.hidden = !this.panels.some(({ run }) => run.poolBlocks);
    this.findPlaces();
    this.draw();
  }

  // More lines of the only run. What does not follow on is left out: the whole trace comes at the end.
  append({ at, lines, notes }) {
    const { run } = this.panels[0];
    if (run.records.length !== at) return;
    run.append(lines.split("\n"), notes);
    this.draw();
  }

  pickButton(id, colour = "") {
    const picked = this.ui.picked === id, onclick = () => this.change({ picked: picked ? null : id });
    return element("button", { type: "button", ariaPressed: `${picked}`, style: `background: ${colour}`, onclick }, id);
  }

  has(part) { return this.ui.parts.includes(part); }
  label(panel, words) { return this.panels.length > 1 ? `${"AB"[this.panels.indexOf(panel)]}: ${words}` : words; }

  // The cursor's places on the axis are the steps, or the times at which a step of one of the runs begins.
  findPlaces() {
    const inSteps = this.ui.x === "step", runs = this.panels.map((panel) => panel.run);
    const all = runs.flatMap((run) => run.records.map((_, step) => (inSteps ? step : run.start(step))));
    this.places = runs.length > 1 ? [...new Set(all)].sort((a, b) => a - b) : all;
    this.end = Math.max(1e-6, ...runs.map((run) => (inSteps ? run.records.length : run.seconds)));
    // While steps come in the axis has room for more, so that the picture does not shrink with each.
    if (this.ui.live) this.end = Math.max(inSteps ? 50 : 0, roundUp(this.end));
  }

  get last() { return Math.max(0, this.places.length - 1); }
  get place() { return clamp(this.ui.cursor ?? this.last, 0, this.last); }
  get at() { return this.places[this.place] ?? 0; }

  // The step of a run at the cursor; undefined before it begins and when it is done.
  stepOf(run) {
    if (this.ui.x === "step") return this.at < run.records.length ? this.at : undefined;
    const step = run.records.findLastIndex((_, i) => run.start(i) <= this.at);
    return step >= 0 && (step < run.records.length - 1 || this.at <= run.stop(step)) ? step : undefined;
  }

  seek(value) { this.move(this.places.findLastIndex((place) => place <= value)); }

  move(place) {
    const cursor = clamp(place, 0, this.last);
    this.change({ cursor: this.ui.live && cursor === this.last ? null : cursor });
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -FAR, PageDown: FAR, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === " ") this.play(!this.timer);
    else if (by) this.move(this.place + by);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  play(on) {
    clearInterval(this.timer);
    this.timer = 0;
    this.player.textContent = on ? "Pause" : "Play";
    if (!on) return;
    if (this.place === this.last) this.move(0);
    const next = () => { if (this.place === this.last) this.play(false); else this.move(this.place + 1); };
    this.timer = setInterval(next, isCalm() ? 700 : 120);
  }

  change(ui) { // by a reader
    const { run } = this.panels[0], step = this.stepOf(run);
    this.set(ui);
    if (ui.x && this.ui.cursor !== null && step !== undefined) { // stay at the step, whose place may be another
      ui.cursor = this.ui.cursor = this.places.indexOf(ui.x === "step" ? step : run.start(step));
    }
    this.changed(ui);
  }

  set(ui) { // by the program
    Object.assign(this.ui, ui);
    this.findPlaces();
    this.draw(Object.keys(ui).every((name) => name === "cursor" || name === "picked") ? "cursor" : "all");
  }

  applyTheme() {
    const theme = isDark() ? "dark" : "light", { ink, paper } = this.feed.looks;
    if (theme !== this.theme) this.looks = {};
    Object.assign(this, { theme, ink: ink[theme], paper: paper[theme] });
    const colours = { ink: this.ink, paper: this.paper, line: `${this.ink}44`, focus: this.look("decode").colour };
    for (const [name, colour] of Object.entries(colours)) this.root.style.setProperty(`--${name}`, colour);
    this.root.style.fontSize = this.ui.font;
    this.em = parseFloat(getComputedStyle(this.root).fontSize);
  }

  // {colour, hatch} of a state, or of what a strip counts.
  look(name) {
    const { kv } = this.feed.looks;
    const others = { "KV used": [kv], "KV reserved": [`${kv}59`, ".", this.ink], "device busy": [`${this.ink}77`] };
    const make = (colour, kind, ink) => ({ colour, hatch: kind && hatched(kind, ink) });
    const state = this.feed.states[this.code[name]], colour = state?.[this.theme];
    return this.looks[name] ??= state ? make(colour, state.hatch[0], inkOn(colour)) : make(...others[name]);
  }

  cross(context, x, y, arm) {
    for (const [width, colour] of [[5, this.paper], [2.5, this.look("preempted").colour]]) {
      Object.assign(context, { lineWidth: width, strokeStyle: colour });
      line(context, x - arm, y - arm, x + arm, y + arm);
      line(context, x - arm, y + arm, x + arm, y - arm);
    }
  }

  owner(run, id) { return this.feed.looks.owners[run.request(id).row % this.feed.looks.owners.length]; }

  fillLegend() {
    const { em, panels } = this, strips = panels.flatMap((panel) => panel.strips), width = 1.7 * em;
    const codes = new Set(panels.flatMap(({ run }) => [...new Set(run.grid(this.ui.by, this.code))]));
    const names = this.feed.states.filter((_, code) => codes.has(code)).map(({ name }) => name);
    for (const { name, layers } of strips) if (name === "KV tokens") names.push(...layers.map((layer) => layer.name));
    if (panels.some(({ run }) => run.records.some(({ victims }) => victims.length))) names.push("preemption");
    const lines = Object.fromEntries(strips.filter(({ limit }) => limit).map(({ line: name, dash }) => [name, dash]));
    const all = [...new Set([...names, ...Object.keys(lines)])], key = [this.theme, em, ...all].join();
    if (this.legend.key === key) return;
    this.legend.key = key;
    this.legend.replaceChildren(...all.map((name) => {
      const canvas = element("canvas"), sign = this.feed.states[this.code[name]]?.sign ?? "";
      canvas.style.width = `${width}px`;
      const context = sheet(canvas, width, 0.95 * em, em);
      context.strokeStyle = this.ink;
      context.setLineDash(lines[name] ?? []);
      if (lines[name]) line(context, 0, 0.5 * em, width, 0.5 * em);
      else if (name === "preemption") this.cross(context, width / 2, 0.47 * em, 0.3 * em);
      else fill(context, this.look(name), 0, 0, width, 0.95 * em);
      return element("span", {}, canvas, isLetter(sign) ? `${name} (${sign})` : name);
    }));
  }

  // At most once a frame; while steps come in, and a reader wants little motion, twice a second.
  draw(what = "all") {
    this.stale ||= what === "all";
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const follows = this.ui.live && this.ui.cursor === null;
      if (follows && isCalm() && performance.now() - this.drawnAt < 500) this.draw(what);
      else this.paint();
    });
  }

  paint() {
    if (this.root.clientWidth < 100) return; // not in the page, or no room; an observer calls when that changes
    this.drawnAt = performance.now();
    this.applyTheme();
    this.findPlaces();
    for (const [part, details] of Object.entries(this.folds)) details.open = this.has(part);
    for (const node of [...this.choices, this.legend, ...this.panels.map((panel) => panel.stack)]) {
      node.hidden = !this.has("timeline");
    }
    if (this.stale && this.has("timeline")) this.paintPanels();
    this.stale = false;
    const inSteps = this.ui.x === "step";
    Object.assign(this.scrubber, { step: inSteps ? 1 : "any", max: inSteps ? this.end - 1 : this.end, value: this.at });
    // A screen reader is told what a reader looks at, not each step that comes in or is played.
    const follows = this.timer || (this.ui.live && this.ui.cursor === null);
    const heads = this.panels.map((panel) => {
      const { run, words, blocks } = panel, step = this.stepOf(run);
      const [what, details, why] = run.told(step, this.at), head = this.label(panel, what);
      words.ariaLive = follows ? "off" : "polite";
      words.replaceChildren(element("p", {}, head), element("p", {}, details), element("p", { className: "why" }, why));
      if (this.has("timeline")) panel.mark(step);
      if (this.has("table")) panel.table.replaceChildren(this.stepTable(run.records[step]));
      if (this.has("blocks") && run.poolBlocks) blocks.paint(step);
      return head;
    });
    this.scrubber.ariaValueText = heads.join(" ");
  }

  paintPanels() {
    this.width = this.stage.clientWidth;
    this.by.value = this.ui.by;
    this.x.value = this.ui.x;
    for (const panel of this.panels) panel.layout();
    const strips = this.panels.flatMap((panel) => panel.strips), context = sheet(element("canvas"), 1, 1, this.em);
    const names = [this.ui.x, ...strips.map(({ name }) => name), ...this.panels.flatMap((panel) => panel.names)];
    this.left = Math.ceil(10 + names.reduce((most, name) => Math.max(most, context.measureText(name).width), 0));
    this.right = this.width - 4;
    this.root.style.setProperty("--gutter", `${this.left - 8}px`); // half the scrubber's thumb to the left
    this.toX = (value) => this.left + (value / this.end) * (this.right - this.left);
    this.fromX = (x) => (clamp(x - this.left, 0, this.right - this.left) / (this.right - this.left)) * this.end;
    this.tops = {};
    for (const { name, top = 1 } of strips) this.tops[name] = Math.max(1, top, this.tops[name] ?? 0);
    for (const panel of this.panels) panel.paint();
    this.fillLegend();
  }

  stepTable(record) {
    const rows = (record?.work ?? []).map(([id, lane, kind, tokens, context]) =>
      [this.pickButton(id), lane, kind, tokens, context, kind === "wasted" ? "" : record.emitted[id] ?? ""]);
    return table(["request", "lane", "does", "tokens", "in the cache", "new tokens"], rows, [1, 3, 4, 5]);
  }
}

// For a page.
export const mount = (root, feed, ui) => new View(root, feed, ui);

const SHARED = ["by", "x", "cursor", "picked", "parts", "strips", "live", "font"]; // with Python

// For anywidget, which calls this once for each widget; a widget may have several views.
export default function widget() {
  const views = new Set(), messages = []; // those that came since the traces were last sent whole

  // Called before the first message is delivered, so no step is lost while a view is still on its way.
  function initialize({ model }) {
    model.on("change:traces", () => {
      messages.length = 0;
      for (const view of views) view.load(model.get("traces"));
    });
    model.on("msg:custom", (message) => {
      messages.push(message);
      for (const view of views) view.append(message);
    });
  }

  function render({ model, el }) {
    const root = element("div"), ui = Object.fromEntries(SHARED.map((name) => [name, model.get(name)]));
    el.append(root);
    const view = new View(root, model.get("traces"), ui, (change) => {
      for (const [name, value] of Object.entries(change)) model.set(name, value);
      model.save_changes();
    });
    for (const message of messages) view.append(message);
    const follow = () => {
      const news = SHARED.filter((name) => model.get(name) !== view.ui[name]).map((name) => [name, model.get(name)]);
      if (news.length) view.set(Object.fromEntries(news));
    };
    views.add(view);
    model.on("change", follow);
    return () => { views.delete(view); model.off("change", follow); view.close(); };
  }

  return { initialize, render };
}
