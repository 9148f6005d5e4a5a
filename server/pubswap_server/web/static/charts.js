"use strict";
// Draws the groups of charts that `points.py` sends, and draws them again when the run changes.
// uPlot draws axes, grid and lines. Here are: the range of values, marks of outliers, what the
// pointer, a finger or the arrow keys show, and the choice of members.

/** The part of sorted values that a chart shows: all, or without at most 5 % far from the others. */
function usualRange(values) {
  const sorted = values.filter((value) => value != null).sort((a, b) => a - b);
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const [low, high] = [at(0), at(1)];
  const spread = at(0.75) - at(0.25);
  const inside = sorted.filter(
    (value) => value >= at(0.25) - 3 * spread && value <= at(0.75) + 3 * spread
  );
  const [first, last] = [inside[0], inside[inside.length - 1]];
  const few = sorted.length - inside.length <= Math.max(1, sorted.length / 20);
  return spread > 0 && sorted.length > 4 && few && high - low > 3 * (last - first) ? [first, last] : [low, high];
}

/** A way to write numbers that rounds as the tables do, so that 0.3125 is 0.312 in both. */
const rounding = (options) =>
  new Intl.NumberFormat("en", { roundingMode: "halfEven", signDisplay: "negative", ...options });
const whole = rounding({ maximumFractionDigits: 0 });
const digits = rounding({ maximumSignificantDigits: 3 });
const places = rounding({ minimumFractionDigits: 3, maximumFractionDigits: 3 });

/** A number in at most ten characters. */
function short(value) {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (size >= 999.5 && size < 1e6) return whole.format(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6)
    ? value.toExponential(1)
    : digits.format(value);
}

/** The values at an axis, all with the decimals that their distance needs. */
function tickTexts(ticks, distance) {
  const digits = (String(+distance.toPrecision(3)).split(".")[1] || "").length;
  const decimals = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  const usual = distance >= 1e-3 && ticks.every((tick) => Math.abs(tick) < 1e6);
  return ticks.map((tick) => (usual ? tick.toLocaleString("en", decimals) : short(tick)));
}

/** An element with a class, a text and children. */
function made(name, kind, text, ...children) {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

const COLOURS = 8;
const HEIGHT = 180;
// Distances between the numbers of rounds or steps at an axis.
const WHOLE = [1, 10, 100, 1e3, 1e4, 1e5, 1e6].flatMap((power) => [power, 2 * power, 5 * power]);

class Chart {
  constructor(group) {
    this.group = group;
    this.heading = made("figcaption");
    this.plot = made("div", "plot");
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "img");
    this.tip = made("div", "tip");
    this.tip.hidden = true;
    this.tip.setAttribute("role", "status");
    this.figure = made("figure", "", "", this.heading, this.plot, this.tip);
    this.plot.addEventListener("keydown", (event) => this.move(event));
    this.plot.addEventListener("blur", () => this.drawn && this.drawn.setCursor({ left: -10, top: -10 }));
    new ResizeObserver(() => this.drawn && this.drawn.setSize(this.size())).observe(this.plot);
  }

  size() {
    return { width: Math.max(200, this.plot.clientWidth), height: HEIGHT };
  }

  /** Show these points; the chart is made anew only if its series are others. */
  show(chart) {
    this.chart = chart;
    this.names = Object.keys(chart.series);
    this.heading.replaceChildren(chart.title, " ", made("small", "", chart.unit));
    if (!this.group.names.length && this.names.length > 1) this.heading.append(...this.keys());
    this.plot.setAttribute("aria-label", this.summary());
    const columns = [this.group.x, ...this.names.map((name) => chart.series[name])];
    if (chart.low) columns.push(chart.low, chart.high);
    const kind = JSON.stringify([this.names, !!chart.low]);
    if (this.drawn && kind === this.kind) return this.drawn.setData(columns);
    this.clear();
    this.kind = kind;
    this.drawn = new uPlot(this.options(), columns, this.plot);
    this.drawn.over.addEventListener("pointermove", (event) => this.touch(event));
    this.drawn.over.addEventListener("pointerdown", (event) => this.touch(event));
  }

  /** The names of series that are no members, with their colours. */
  keys() {
    return this.names.map((name, index) => made("small", "key", "", made("i", `swatch c${index}`), name));
  }

  clear() {
    if (this.drawn) this.drawn.destroy();
    this.drawn = null;
  }

  options() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: colour("soft"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    this.colours = this.names.map((name, index) => colour(`c${this.number(name, index) % COLOURS}`));
    const lines = this.names.map((name, index) => ({
      label: name,
      show: !this.group.hidden.has(name),
      stroke: this.colours[index],
      width: 2,
      dash: this.number(name, index) < COLOURS ? [] : [6, 3],
      spanGaps: true,
      points: { show: this.group.x.length < 60, size: 5 },
    }));
    const edge = { stroke: "transparent", points: { show: false }, spanGaps: true };
    const count = lines.length;
    return {
      ...this.size(),
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false, dist: 8 } },
      scales: {
        x: { time: false, range: (_, low, high) => this.width(low, high) },
        y: { range: (plot) => this.range(plot) },
      },
      axes: [
        {
          ...axis,
          ...(this.group.after ? {} : { incrs: WHOLE }),
          space: (_, axisIndex, low, high, length) => Math.max(40, length / 12),
          size: 32,
          values: (_, ticks) => ticks.map(short),
        },
        { ...axis, size: 62, values: (_, ticks, ...rest) => tickTexts(ticks, rest[2]) },
      ],
      series: [{}, ...lines, ...(this.chart.low ? [edge, edge] : [])],
      bands: this.chart.low ? [{ series: [count + 2, count + 1], fill: colour("band") }] : [],
      hooks: {
        drawClear: [(plot) => this.boundaries(plot, colour("line"))],
        draw: [(plot) => this.outliers(plot)],
        setCursor: [(plot) => this.point(plot)],
      },
    };
  }

  /** The range of rounds or steps; uPlot has one from 0 to 100 for a single one. */
  width(low, high) {
    const [only, ...more] = this.group.x;
    if (!more.length && only != null) return [only, only + 1];
    return low === high ? [low, high + 1] : [low, high];
  }

  /** A member's place in the group, so that it has the same colour in each chart. */
  number(name, index) {
    const place = this.group.names.indexOf(name);
    return place < 0 ? index : place;
  }

  range(plot) {
    const shown = plot.data.slice(1).filter((_, index) => plot.series[index + 1].show);
    const values = shown.flat().filter((value) => value != null);
    if (!values.length) return [0, 1];
    const [low, high] = usualRange(values);
    const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
    const whole = values.every((value) => value >= 0) && low - room < 0;
    return [whole ? 0 : low - room, high + room];
  }

  /** A line where each round begins. */
  boundaries(plot, stroke) {
    const tau = this.group.steps;
    if (!tau) return;
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = stroke;
    ctx.beginPath();
    const { min, max } = plot.scales.x;
    for (let step = Math.ceil(min / tau) * tau + 0.5; step < max; step += tau) {
      const x = Math.round(plot.valToPos(step, "x", true));
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
    }
    ctx.stroke();
    ctx.restore();
  }

  /** A triangle at the edge for each value beyond it. */
  outliers(plot) {
    const { ctx, bbox } = plot;
    const { min, max } = plot.scales.y;
    const side = 5 * devicePixelRatio;
    this.names.forEach((_, index) => {
      if (!plot.series[index + 1].show) return;
      ctx.fillStyle = this.colours[index];
      plot.data[index + 1].forEach((value, place) => {
        if (value == null || (value >= min && value <= max)) return;
        const x = plot.valToPos(plot.data[0][place], "x", true);
        const [tip, base] = value > max
          ? [bbox.top, bbox.top + 2 * side]
          : [bbox.top + bbox.height, bbox.top + bbox.height - 2 * side];
        ctx.beginPath();
        ctx.moveTo(x, tip);
        ctx.lineTo(x - side, base);
        ctx.lineTo(x + side, base);
        ctx.fill();
      });
    });
  }

  touch(event) {
    if (event.pointerType === "touch") this.drawn.setCursor({ left: event.offsetX, top: event.offsetY });
  }

  /** Left and right go from point to point. */
  move(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !this.drawn) return;
    event.preventDefault();
    const last = this.group.x.length - 1;
    const now = this.drawn.cursor.idx ?? (by > 0 ? -1 : last + 1);
    const place = Math.min(last, Math.max(0, now + by));
    this.drawn.setCursor({ left: this.drawn.valToPos(this.group.x[place], "x"), top: 10 });
  }

  /** Show the values at the cursor. */
  point(plot) {
    const place = plot.cursor.left < 0 ? null : plot.cursor.idx;
    this.tip.hidden = place == null;
    if (place == null) return;
    const rows = this.names
      .map((name, index) => [name, plot.data[index + 1][place], index])
      .filter(([name, value]) => value != null && !this.group.hidden.has(name))
      .map(([name, value, index]) =>
        made("li", "", "", made("i", `swatch c${this.number(name, index) % COLOURS}`), `${name} `, made("b", "", this.text(value, place)))
      );
    this.tip.replaceChildren(made("p", "", this.place(this.group.x[place])), made("ul", "", "", ...rows));
    const right = plot.cursor.left > plot.over.clientWidth / 2;
    this.tip.classList.toggle("left", right);
  }

  place(x) {
    const tau = this.group.steps;
    if (!tau) return this.group.after ? `${short(x)} ${this.group.of}` : `${this.group.of} ${x}`;
    return `round ${Math.floor((x - 1) / tau) + 1}, step ${((x - 1) % tau) + 1}`;
  }

  text(value, place) {
    const { low, high, n } = this.chart;
    if (!low || low[place] == null) return short(value);
    return `${places.format(value)} (${low[place].toFixed(2)} to ${high[place].toFixed(2)}, n = ${n[place]})`;
  }

  /** The last values in words, for those who cannot see the picture. */
  summary() {
    const last = this.names.slice(0, 4).map((name) => {
      const values = this.chart.series[name];
      const place = values.findLastIndex((value) => value != null);
      return place < 0 ? "" : `${name} ${this.text(values[place], place)} in ${this.place(this.group.x[place])}`;
    });
    return `${this.chart.title}: ${last.filter(Boolean).join("; ")}`;
  }
}

class Group {
  constructor(title) {
    this.hidden = new Set();
    this.charts = new Map();
    this.legend = made("fieldset", "legend");
    this.more = made("p", "none");
    this.grid = made("div", "charts");
    this.section = made("section", "", "", made("h2", "", title), this.legend, this.more, this.grid);
  }

  show(group) {
    const changed = JSON.stringify(group.names) !== JSON.stringify(this.names);
    Object.assign(this, { x: group.x, of: group.of, after: group.after, steps: group.steps });
    Object.assign(this, { names: group.names, choice: group.legend || "Members" });
    if (changed) this.choose();
    this.more.textContent = group.more
      ? `Of the first ${group.names.length} members by name; ${group.more} more are not drawn.`
      : "";
    const titles = group.charts.map((chart) => chart.title);
    for (const [title, chart] of this.charts) {
      if (titles.includes(title)) continue;
      chart.clear();
      chart.figure.remove();
      this.charts.delete(title);
    }
    for (const each of group.charts) {
      if (!this.charts.has(each.title)) {
        const chart = new Chart(this);
        this.charts.set(each.title, chart);
        this.grid.append(chart.figure);
      }
      this.charts.get(each.title).show(each);
    }
  }

  /** A box for each member, and a button for all. */
  choose() {
    this.legend.hidden = this.names.length < 2;
    const boxes = this.names.map((name, index) => {
      const box = made("input");
      box.type = "checkbox";
      box.checked = !this.hidden.has(name);
      box.addEventListener("change", () => this.toggle(name, box.checked));
      return [box, made("label", "", "", box, made("i", `swatch c${index % COLOURS}`), name)];
    });
    const all = made("button", "", "All or none");
    all.type = "button";
    all.addEventListener("click", () => {
      const shown = boxes.some(([box]) => !box.checked);
      boxes.forEach(([box], index) => {
        box.checked = shown;
        this.toggle(this.names[index], shown);
      });
    });
    this.legend.replaceChildren(made("legend", "", this.choice), ...boxes.map(([, label]) => label), all);
  }

  toggle(name, shown) {
    this.hidden[shown ? "delete" : "add"](name);
    for (const chart of this.charts.values()) {
      const index = chart.names.indexOf(name);
      if (index >= 0) chart.drawn.setSeries(index + 1, { show: shown });
    }
  }
}

function follow(root) {
  const groups = new Map();
  let shown = [];
  let busy = false;
  let stale = false;
  let due = null;

  function draw() {
    for (const each of shown) {
      if (!groups.has(each.title)) {
        const group = new Group(each.title);
        groups.set(each.title, group);
        root.append(group.section);
      }
      groups.get(each.title).show(each);
    }
  }

  /** Once for several parts that change together. */
  function soon() {
    due ??= setTimeout(refresh, 300);
  }

  async function refresh() {
    due = null;
    stale = true;
    if (busy || document.hidden) return;
    busy = true;
    stale = false;
    try {
      const answer = await fetch(root.dataset.points, { headers: { "HX-Request": "true" } });
      if (answer.status === 401) location.reload();
      if (answer.ok) {
        shown = await answer.json();
        draw();
      }
    } catch {
      // the coordinator is away: the next event comes when it is back
    } finally {
      busy = false;
    }
    if (stale) refresh();
  }

  const live = document.getElementById("live");
  for (const part of ["progress", "results"]) live?.addEventListener(part, soon);
  document.addEventListener("visibilitychange", () => stale && refresh());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const group of groups.values()) group.charts.forEach((chart) => chart.clear());
    draw();
  });
  refresh();
}

const root = document.getElementById("charts");
if (root) follow(root);
