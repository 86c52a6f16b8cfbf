// Draws one trace, or two on one scale, with one cursor.
//
// A feed (feed.py) is {traces: [{lines, name, title, alt}], differences, states, looks}: `lines` is what Trace.save
// writes, the looks are those of states.py. widget.py feeds it in a notebook, also while an engine runs; html.py in a
// page. timeline.css goes with it.
//
//     Run       a trace, read: its records, lanes and requests, the state of each cell, who owns which block
//     Panel     one run on the page: the picture with its strips
//     BlockMap  the pool of one run at the cursor
//     View      all of it: the controls, the cursor, one or two panels, their words and tables
//
// Cells are the pixels of a small picture that is drawn enlarged: there is no DOM node per cell.

const FAR = 10; // steps of PageUp and PageDown
const PALE = 0.4; // blocks that are taken, where nothing is written
const HATCHES = { // lines in a tile of 8 by 8; the keys are matplotlib's, as in states.py
  "|": [[2, 0, 2, 8], [6, 0, 6, 8]],
  "/": [[-2, 2, 2, -2], [0, 8, 8, 0], [6, 10, 10, 6]],
  "\\": [[-2, 6, 2, 10], [0, 0, 8, 8], [6, -2, 10, 2]],
  "x": [[0, 8, 8, 0], [0, 0, 8, 8]],
  ".": [[2, 2, 3, 2], [6, 6, 7, 6]],
};

// -- a trace, read ----------------------------------------------------------------------------------------------------

class Run {
  constructor({ lines, ...words }) {
    const [meta, ...rest] = lines.split("\n");
    Object.assign(this, words);
    this.meta = JSON.parse(meta);
    this.records = [];
    this.requests = new Map(); // id -> {row, lane, arrival, end}, in order of appearance
    this.lanes = 1;
    this.poolBlocks = this.meta.settings?.num_blocks ?? 0;
    this.usedBlocks = 0; // up to the highest that was ever taken
    this.append(rest);
  }

  append(lines) {
    for (const line of lines) if (line) this.add(JSON.parse(line));
    this.grids = {};
  }

  add(record) {
    this.records.push(record);
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
  }

  request(id) {
    if (!this.requests.has(id)) this.requests.set(id, { row: this.requests.size });
    return this.requests.get(id);
  }

  start(step) { return this.records[step].t0 - this.begin; }
  stop(step) { return this.records[step].t1 - this.begin; }
  get seconds() { return this.records.length ? this.stop(this.records.length - 1) : 0; }

  names(by) {
    return by === "lane" ? Array.from({ length: this.lanes }, (_, lane) => `${lane}`) : [...this.requests.keys()];
  }

  // The state of each row in each step, row by row. code: name of a state -> its number.
  grid(by, code) {
    return this.grids[by] ??= by === "lane" ? this.laneGrid(code) : this.requestGrid(code);
  }

  laneGrid(code) {
    const steps = this.records.length, cells = new Uint8Array(this.lanes * steps);
    this.records.forEach((record, step) => {
      for (const [, lane, kind] of record.work) setCell(cells, lane * steps + step, code[kind], kind);
    });
    return cells;
  }

  // A request waits from its arrival to its end, except where it computes or has given way.
  requestGrid(code) {
    const steps = this.records.length, rows = this.requests.size, cells = new Uint8Array(rows * steps);
    const rest = Uint8Array.from(this.requests.values(), ({ arrival }) => (arrival === undefined ? code.waiting : 0));
    const row = (id) => this.requests.get(id)?.row; // undefined for a victim that the trace never saw at work
    const turn = (id, state) => { if (row(id) !== undefined) rest[row(id)] = code[state]; };
    this.records.forEach((record, step) => {
      for (const [id] of record.arrived) turn(id, "waiting");
      for (const { id } of record.victims) turn(id, "preempted");
      for (const id of record.resumed) turn(id, "waiting");
      for (const [id] of record.finished) turn(id, "idle");
      for (const [id, , kind] of record.work) setCell(cells, row(id) * steps + step, code[kind], kind);
      for (const [id] of record.work) { // the request of a wasted row has ended, maybe before the trace began
        if (cells[row(id) * steps + step] === code.wasted) turn(id, "idle");
      }
      for (let at = step, i = 0; i < rows; at += steps, i++) cells[at] ||= rest[i];
    });
    return cells;
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

// A row of padding and prompt is prefill: a row is wasted only when nothing in it is of use.
function setCell(cells, at, code, kind) {
  if (kind !== "wasted" || cells[at] === 0) cells[at] = code;
}

// -- a step in words: [what, details, who waits and why] --------------------------------------------------------------

function sentences(run, step, at) {
  const record = run.records[step], last = run.records.length - 1;
  if (!record) return [last >= 0 && at > 0 ? `All is done since step ${last}.` : "No step yet.", "", ""];
  const { kv, budget, waiting } = record, kinds = Object.entries(record.tokens), said = [];
  const tokens = kinds.reduce((sum, [, n]) => sum + n, 0), lanes = new Set(record.work.map(([, lane]) => lane)).size;
  const what = `${count(tokens, "token")}${budget === null ? "" : ` of a budget of ${budget}`}`;
  said.push(tokens ? `${what}: ${kinds.map(([kind, n]) => `${n} ${kind}`).join(", ")}.` : "Nothing is computed.");
  said.push(`${lanes} of ${count(run.meta.settings?.max_num_seqs ?? run.lanes, "lane")} busy.`);
  if (kv) {
    const rest = { reserved: "reserved", internal: "lost inside blocks", external: "free in holes too short" };
    const parts = Object.entries(rest).filter(([name]) => kv[name]).map(([name, words]) => `, ${kv[name]} ${words}`);
    said.push(`KV: ${kv.used} of ${kv.total} tokens used${parts.join("")}.`);
  }
  if (record.cost) {
    const { seconds, mfu, mbu, ...terms } = record.cost;
    const parts = Object.entries(terms).filter(([, term]) => term > 0.01 * seconds);
    said.push(`The GPU, modelled: ${parts.map(([name, term]) => `${name} ${duration(term)}`).join(", ")}`
      + `${mfu === undefined ? "" : `; MFU ${percent(mfu)}, MBU ${percent(mbu)}`}.`);
  }
  const came = { Arrived: record.arrived.map(([id]) => id), Admitted: record.admitted, Resumed: record.resumed };
  const went = { Finished: record.finished.map(([id, reason]) => `${id} (${reason})`) };
  for (const [verb, ids] of Object.entries({ ...came, ...went })) if (ids.length) said.push(`${verb}: ${list(ids)}.`);
  for (const [id, mode, cause, lost, moved, why] of record.preempted.slice(0, 4)) {
    const cost = mode === "swap" ? `${count(moved, "block")} moved to the CPU` : `${count(lost, "token")} lost`;
    said.push(`${id} ${cause === "turn" ? "yields" : `is preempted by ${mode}`}, ${cost}: ${why}.`);
  }
  const planned = record.schedule_s ? `, ${duration(record.schedule_s)} of it to schedule` : "";
  const times = `at ${duration(run.start(step))}: ${duration(record.t1 - record.t0)} long${planned}`;
  const behind = waiting?.[2] ? `${waiting[2]} more behind it.` : "Nobody stands behind it.";
  return [`Step ${step} (the last is ${last}), ${times}.`, said.join(" "),
    waiting ? `Request ${waiting[0]} waits: ${waiting[1]}. ${behind}` : "Nobody waits."];
}

const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const percent = (share) => `${+(100 * share).toPrecision(2)}%`;
const list = (items) => items.slice(0, 8).join(", ") + (items.length > 8 ? ` and ${items.length - 8} more` : "");
const duration = (s) => (Math.abs(s) >= 1 ? `${+s.toPrecision(3)} s` : `${+(1000 * s).toPrecision(3)} ms`);

// -- helpers ----------------------------------------------------------------------------------------------------------

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const rgb = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
const isLetter = (sign) => /[a-z]/i.test(sign);
const isCalm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// JupyterLab acts on keys (`b` inserts a cell) unless the element that has the focus says so itself.
function control(tag, properties, ...children) {
  const node = element(tag, properties, ...children);
  node.setAttribute("data-lm-suppress-shortcuts", "true");
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

// Hue alone carries nothing: a hatch comes on top, where there is room for one.
function fill(context, { colour, hatch }, x, y, width, height) {
  for (const style of [colour, width >= 5 && height >= 4 && hatch]) {
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
  if (body.classList.contains("vscode-dark") || body.classList.contains("vscode-high-contrast")) return true;
  if (body.classList.contains("vscode-light")) return false;
  if (html.hasAttribute("theme")) return html.getAttribute("theme") === "dark"; // Colab
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

// -- one run: lanes or requests, and strips of counts on the same axis ------------------------------------------------

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
    const height = Math.min(1.35 * em, ((panels.length > 1 ? 14 : 24) * em) / this.names.length);
    this.rowHeight = height > 3 ? Math.floor(height) : height;
    this.lanesHeight = Math.max(1, Math.round(this.rowHeight * this.names.length));
    this.strips = this.makeStrips();
    this.stripHeight = Math.round(2.2 * em);
    this.bottom = this.lanesHeight + this.strips.length * (this.stripHeight + 6);
    this.height = this.bottom + Math.round(1.6 * em);
  }

  makeStrips() {
    const { records } = this.run, most = (of) => records.reduce((max, record) => Math.max(max, of(record)), 0);
    const kinds = ["decode", "prefill", "recompute", "wasted"];
    const tokens = kinds.map((name) => ({ name, of: (record) => record.tokens[name] ?? 0 }));
    const queue = { name: "waiting", of: (record) => record.queue };
    const used = { name: "KV used", of: ({ kv }) => kv?.used ?? 0 };
    const empty = { name: "KV reserved", of: ({ kv }) => (kv ? kv.reserved + kv.internal : 0) };
    // What lies between two steps, or goes by while Python schedules, is a gap in which the device waits.
    const busy = { name: "device busy", of: () => 1, from: ({ t0, t1, schedule_s: plan }) => Math.min(t0 + plan, t1) };

    const budget = most((record) => record.budget ?? 0), pool = most(({ kv }) => kv?.total ?? 0);
    const top = most((record) => tokens.reduce((sum, { of }) => sum + of(record), 0));
    return [
      { name: "tokens", layers: tokens, top: Math.max(budget, top), limit: budget, dash: [2, 3] },
      { name: "waiting", layers: [queue], top: most(queue.of) },
      ...(pool ? [{ name: "KV tokens", layers: [used, empty], top: pool, limit: pool, dash: [6, 4] }] : []),
      ...(this.view.ui.x === "time" ? [{ name: "device", layers: [busy] }] : []),
    ];
  }

  paint() {
    const { view, run, strips, stripHeight } = this, { ui, left, right, em } = view;
    const context = sheet(this.picture, view.width, this.height, em);
    const span = (step) => (ui.x === "step" ? [step, step + 1] : [run.start(step), run.stop(step)]);
    this.columns = run.records.map((_, step) => span(step).map(view.toX));
    fill(context, view.look("idle"), left, 0, right - left, this.lanesHeight);
    if (run.records.length) this.paintCells(context, run.grid(ui.by, view.code));
    strips.forEach((strip, i) => this.paintStrip(context, strip, this.lanesHeight + 6 + i * (stripHeight + 6)));
    this.paintAxis(context);
    const every = Math.ceil((1.05 * em) / this.rowHeight);
    this.names.forEach((name, row) => {
      if (row % every === 0) text(context, name, left - 5, Math.max(0.5 * em, this.middle(row)), "right");
    });
  }

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
    const memory = new Uint32Array(pixels.data.buffer), palette = view.palette();
    cells.forEach((code, i) => { memory[i] = palette[code]; });
    small.getContext("2d").putImageData(pixels, 0, 0);
    context.imageSmoothingEnabled = false;
    if (ui.x === "step") {
      context.drawImage(small, columns[0][0], 0, columns[steps - 1][1] - columns[0][0], this.lanesHeight);
    } else {
      columns.forEach(([from, to], step) =>
        context.drawImage(small, step, 0, 1, rows, from, 0, Math.max(0.5, to - from), this.lanesHeight));
    }
    context.save();
    if (rowHeight >= 3) this.paintSigns(context, cells);
    context.restore();
    context.fillStyle = view.paper;
    const apart = rowHeight >= 6 ? rows : 0;
    for (let row = 1; row < apart; row++) context.fillRect(left, row * rowHeight - 0.5, right - left, 1);
    this.paintPreemptions(context);
  }

  // A cell with room for it has its state's letter, a run of smaller ones its hatch.
  paintSigns(context, cells) {
    const { view, rowHeight, columns } = this, steps = columns.length;
    // A large font gives in, down to the width of a column.
    const room = Math.min(0.8 * view.em, Math.max(10, 0.95 * (columns[0][1] - columns[0][0])));
    context.font = `${1.06 * room}px system-ui, sans-serif`;
    for (let row = 0; row < this.names.length; row++) {
      for (let step = 0, next; step < steps; step = next) {
        const code = cells[row * steps + step], { name, sign } = view.feed.states[code], [from, to] = columns[step];
        next = step + 1;
        if (isLetter(sign) && Math.min(rowHeight, to - from) >= room) {
          context.fillStyle = inkOn(view.look(name).colour);
          text(context, sign, (from + to) / 2, this.middle(row));
          continue;
        }
        const same = () => cells[row * steps + next] === code && columns[next][0] - columns[next - 1][1] < 1;
        while (next < steps && same()) next++;
        fill(context, { hatch: view.look(name).hatch }, from, row * rowHeight, columns[next - 1][1] - from, rowHeight);
      }
    }
  }

  paintPreemptions(context) {
    const { view, run, rowHeight } = this, arm = clamp(rowHeight / 3, 3, 0.4 * view.em);
    run.records.forEach(({ victims }, step) => victims.forEach(({ id, lane }) => {
      const row = view.ui.by === "lane" ? lane : run.requests.get(id)?.row;
      if (row !== undefined) view.cross(context, this.columns[step][0], this.middle(row), arm);
    }));
  }

  paintStrip(context, { name, layers, limit, dash }, top) {
    const { view, run, columns, stripHeight: height } = this, { left, right, ink } = view, scale = view.tops[name];
    const toY = (value) => top + height - (value / scale) * height, base = new Float64Array(run.records.length);
    fill(context, view.look("idle"), left, top, right - left, height);
    for (const layer of layers) {
      const look = view.look(layer.name);
      run.records.forEach((record, step) => {
        const value = layer.of(record), [start, to] = columns[step];
        if (!value) return;
        const from = Math.round(layer.from ? view.toX(layer.from(record) - run.begin) : start), y = toY(base[step]);
        base[step] += value;
        fill(context, look, from, toY(base[step]), Math.max(1, Math.round(to) - from), y - toY(base[step]));
      });
    }
    Object.assign(context, { fillStyle: ink, strokeStyle: ink, lineWidth: 1 });
    if (limit) {
      context.setLineDash(dash);
      line(context, left, toY(limit) + 0.5, right, toY(limit) + 0.5);
      context.setLineDash([]);
    }
    text(context, name, left - 5, top + 0.32 * height, "right");
    if (name === "device") return;
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
    text(context, ui.x, left - 5, y, "right");
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
        const row = ui.by === "lane" ? mine[1] : run.request(ui.picked).row;
        for (const y of [row, row + 1]) context.fillRect(from, y * rowHeight - 1, to - from, 2);
      });
    }
    const [from, to] = this.columns[step] ?? [view.toX(view.at), view.toX(view.at)];
    context.globalAlpha = 0.16;
    context.fillRect(from, 0, to - from, bottom);
    context.globalAlpha = 1;
    for (const x of [from, Math.max(to, from + 2)]) {
      context.fillRect(clamp(Math.round(x) - 1, left - 1, right), 0, 1.5, bottom);
    }
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

// -- the pool at the cursor: physical blocks by number, in their owners' colours --------------------------------------

class BlockMap {
  constructor(view, run) {
    Object.assign(this, { view, run, ownerOf: new Map() });
    this.map = element("canvas", { className: "blocks", role: "img" });
    this.words = element("p");
    this.chips = element("div", { className: "chips" });
    const hit = (event) => this.ownerOf.get(this.blockAt(event.offsetX, event.offsetY));
    this.map.onclick = (event) => view.change({ picked: hit(event) ?? null });
    this.node = element("div", {}, this.map, this.words, this.chips);
  }

  // As in figure.py: all blocks up to the last that was ever taken, in rows of a power of two.
  layout(logical) {
    const { run, view: { em } } = this, width = this.node.clientWidth, used = Math.max(1, run.usedBlocks);
    const columns = Math.min(run.poolBlocks, Math.max(16, 2 ** Math.ceil(Math.log2(Math.sqrt(2 * used)))));
    const shown = Math.min(run.poolBlocks, columns * Math.ceil(used / columns)), rows = Math.ceil(shown / columns);
    const left = 3.6 * em, w = (width - left) / columns;
    const h = Math.min(w, 1.7 * em, Math.max(3, (24 * em) / rows));
    Object.assign(this, { columns, shown, rows, left, top: logical ? 4.2 * em : 0, w, h, width });
  }

  corner(block) {
    return [this.left + (block % this.columns) * this.w, this.top + Math.floor(block / this.columns) * this.h];
  }

  blockAt(x, y) {
    const column = Math.floor((x - this.left) / this.w);
    return column >= 0 && column < this.columns ? Math.floor((y - this.top) / this.h) * this.columns + column : -1;
  }

  paint(step) {
    const { view, run } = this, { em, ink, paper } = view, size = run.meta.settings.block_size;
    const held = run.records[step] ? run.owners(step) : [], picked = held.find(({ id }) => id === view.ui.picked);
    this.layout(picked);
    const { w, h, rows, top, width } = this, gap = w > 8 ? 1 : 0, box = [w - gap, h - gap];
    const context = sheet(this.map, width, top + rows * h + 2, em);
    Object.assign(context, { textAlign: "center", lineJoin: "round" });
    this.map.style.width = `${width}px`;
    for (let block = 0; block < this.shown; block++) fill(context, view.look("idle"), ...this.corner(block), ...box);
    this.ownerOf.clear();
    for (const { id, blocks, tokens } of held) blocks.forEach((block, logical) => {
      const [x, y] = this.corner(block), colour = view.owner(run, id), written = clamp(tokens / size - logical, 0, 1);
      this.ownerOf.set(block, id);
      context.globalAlpha = PALE;
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
      text(context, row * this.columns, this.left - 5, top + row * h + Math.max(h, em) / 2, "right");
    }
    if (picked) this.paintMapping(context, picked);
    this.tell(held, picked, size);
  }

  // The picked request's logical blocks in a row, each with a line to where it lies.
  paintMapping(context, { id, blocks }) {
    const { view, left, w, h } = this, { em, ink } = view;
    const cell = clamp((this.width - left) / blocks.length, 1.7 * em, 4.5 * em);
    Object.assign(context, { strokeStyle: ink, fillStyle: ink, lineWidth: 1.5 });
    text(context, "logical", left - 5, 0.85 * em, "right");
    blocks.forEach((block, logical) => {
      const [x, y] = this.corner(block), from = left + logical * cell, middle = from + cell / 2;
      context.strokeRect(x + 0.5, y + 0.5, w - 2, h - 2);
      if (from + cell > this.width) return; // no room for a row this long
      fill(context, { colour: view.owner(this.run, id) }, from, 0, cell - 2, 1.7 * em);
      context.fillStyle = "#000000";
      text(context, logical, middle, 0.85 * em);
      line(context, middle, 1.7 * em, x + w / 2, y);
    });
  }

  tell(held, picked, size) {
    const { run, view, shown } = this, taken = held.reduce((sum, { blocks }) => sum + blocks.length, 0);
    const said = [`${taken} of ${run.poolBlocks} blocks of ${count(size, "token")} are taken; dotted: not written.`];
    if (shown < run.poolBlocks) said.push(`Blocks ${shown} to ${run.poolBlocks - 1} were never used and are left out.`);
    if (picked) {
      const pairs = list(picked.blocks.map((block, logical) => `${logical} to ${block}`));
      said.push(`Request ${picked.id}: logical block ${pairs};`);
      said.push(`${picked.tokens} of ${picked.blocks.length * size} slots are written.`);
    } else if (held.length) said.push("Pick one of these requests to see where its blocks lie.");
    this.words.textContent = this.map.ariaLabel = said.join(" ");
    this.chips.replaceChildren(...held.slice(0, 40).map(({ id }) => {
      const chip = view.pickButton(id);
      chip.style.background = view.owner(run, id);
      return chip;
    }));
  }
}

// -- all of it --------------------------------------------------------------------------------------------------------

class View {
  // ui: what a reader can change, and font and live. changed(ui) is told what a reader did change.
  constructor(root, feed, ui = {}, changed = () => {}) {
    const atTheEnd = null, parts = ["timeline"];
    this.ui = { by: "lane", x: "step", cursor: atTheEnd, picked: null, parts, font: "", live: false, ...ui };
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

  has(part) { return this.ui.parts.includes(part); }

  // -- what it shows --

  build() {
    const choice = (key, name, options) => {
      const select = control("select", {}, ...options.map((option) => element("option", {}, option)));
      select.onchange = () => this.change({ [key]: select.value });
      this[key] = select;
      return element("label", {}, `${name} `, select);
    };
    const fold = (key, name) => {
      const details = element("details", {}, control("summary", {}, name), element("div", { className: "sides" }));
      details.ontoggle = () => { // also called when the program opens it
        const others = this.ui.parts.filter((part) => part !== key);
        if (details.open !== this.has(key)) this.change({ parts: details.open ? [...others, key] : others });
      };
      return details;
    };
    this.player = control("button", { type: "button", onclick: () => this.play(!this.timer) });
    this.legend = element("div", { className: "legend" });
    this.stage = element("div");
    this.scrubber = control("input", { type: "range", min: 0, ariaLabel: "Step that is described" });
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
  append({ at, lines }) {
    const { run } = this.panels[0];
    if (run.records.length !== at) return;
    run.append(lines.split("\n"));
    this.draw();
  }

  pickButton(id) {
    const picked = this.ui.picked === id, onclick = () => this.change({ picked: picked ? null : id });
    return control("button", { type: "button", ariaPressed: `${picked}`, onclick }, id);
  }

  label(panel, words) { return this.panels.length > 1 ? `${"AB"[this.panels.indexOf(panel)]}: ${words}` : words; }

  // -- the cursor: its places on the axis are the steps, or the times at which a step of one of the runs begins --

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

  // -- looks --

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

  palette() { // as ImageData has it in memory; what is idle lets the ground show
    const bytes = this.feed.states.flatMap((state, code) => [...rgb(state[this.theme]), code ? 255 : 0]);
    return new Uint32Array(Uint8Array.from(bytes).buffer);
  }

  owner(run, id) { return this.feed.looks.owners[run.request(id).row % this.feed.looks.owners.length]; }

  fillLegend() {
    const { em } = this, strips = this.panels.flatMap((panel) => panel.strips);
    const codes = new Set(this.panels.flatMap(({ run }) => [...new Set(run.grid(this.ui.by, this.code))]));
    const names = this.feed.states.filter((_, code) => codes.has(code)).map(({ name }) => name), lines = {};
    for (const { name, limit, dash } of strips) if (limit) lines[name === "tokens" ? "budget" : "KV capacity"] = dash;
    for (const { name, layers } of strips) if (/KV|device/.test(name)) names.push(...layers.map((layer) => layer.name));
    if (this.panels.some(({ run }) => run.records.some(({ victims }) => victims.length))) names.push("preemption");
    const all = [...new Set([...names, ...Object.keys(lines)])], key = [this.theme, em, ...all].join();
    if (this.legend.key === key) return;
    this.legend.key = key;
    this.legend.replaceChildren(...all.map((name) => {
      const canvas = element("canvas"), sign = this.feed.states[this.code[name]]?.sign ?? "";
      canvas.style.width = `${1.7 * em}px`;
      const context = sheet(canvas, 1.7 * em, 0.95 * em, em);
      context.strokeStyle = this.ink;
      context.setLineDash(lines[name] ?? []);
      if (lines[name]) line(context, 0, 0.5 * em, 1.7 * em, 0.5 * em);
      else if (name === "preemption") this.cross(context, 0.85 * em, 0.47 * em, 0.3 * em);
      else fill(context, this.look(name), 0, 0, 1.7 * em, 0.95 * em);
      return element("span", {}, canvas, isLetter(sign) ? `${name} (${sign})` : name);
    }));
  }

  // -- drawing: at most once a frame; while steps come in, and a reader wants little motion, twice a second --

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
      const [what, details, why] = sentences(run, step, this.at), head = this.label(panel, what);
      words.ariaLive = follows ? "off" : "polite";
      words.replaceChildren(element("p", {}, head), element("p", {}, details), element("p", { className: "why" }, why));
      if (this.has("timeline")) panel.mark(step);
      if (this.has("table")) this.fillTable(panel, run.records[step]);
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
    const names = [...strips.map(({ name }) => name), ...this.panels.flatMap((panel) => panel.names)];
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

  fillTable(panel, record) {
    const rows = (record?.work ?? []).map(([id, lane, kind, tokens, context]) =>
      [this.pickButton(id), lane, kind, tokens, context, kind === "wasted" ? "" : record.emitted[id] ?? ""]);
    const heads = ["request", "lane", "does", "tokens", "in the cache", "new tokens"];
    panel.table.replaceChildren(table(heads, rows, [1, 3, 4, 5]));
  }
}

// -- the two doors ----------------------------------------------------------------------------------------------------

// For a page.
export function mount(root, feed, ui) {
  return new View(root, feed, ui);
}

const SHARED = ["by", "x", "cursor", "picked", "parts", "live", "font"]; // with Python

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
