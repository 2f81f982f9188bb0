"use strict";
// The page of stocached web. It asks v1/live for all caches, about once an interval, and keeps their past. All texts
// come from there: they are those of stocached stats.
const byId = id => document.getElementById(id);
const root = document.documentElement;
const css = name => getComputedStyle(root).getPropertyValue("--" + name).trim();
const element = (tag, text, parent) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (parent) parent.append(e); return e; };

const KEPT = 3600; // moments of each cache
const CHARTS = [
  { title: "Hit rate, and part that is cached", most: 1, lines: [["interval_hit_rate", "hit rate", "hit-rate"], ["cached_fraction", "cached", "cached", [8, 5]]] },
  { title: "Reads a second", lines: [["hits_per_second", "hits", "hit-rate"], ["misses_per_second", "misses", "misses", [8, 5]]] },
  { title: "Sets a second", lines: [["stored_per_second", "sets", "sets"], ["evicted_per_second", "evicted", "evicted", [8, 5]]] },
  { title: "Memory, and its limit", bytes: true, lines: [["allocated_bytes", "memory", "memory"], ["segment_bytes", "limit", "ink", [8, 5]]] },
];

let fields = [];           // of stats: {field, title, help}
let columns = [];          // of the list: {field, title}, and {colour, most} of a curve
let latest = null;         // the last answer
const past = new Map();    // by uuid: {seconds: [], field: []}
let chosen = null;         // uuid of the opened cache
let sorted = 0, turned = false;
let charts = [];

// ---------------------------------------------------------------- asking

let last = 0, failed = 0;
async function ask() {
  let pause = 1000;
  try {
    const answer = await fetch("v1/live?after=" + last + (chosen ? "&open=" + encodeURIComponent(chosen) : ""));
    if (!answer.ok) throw new Error((await answer.text()).trim());
    take(await answer.json());
    failed = 0;
    pause = latest.interval_seconds * 1000;
  } catch (error) {
    failed++;
    byId("summary").textContent = "no answer (" + error.message + "): what is shown is old";
    pause = Math.min(1000 * failed, 10000);
  }
  setTimeout(ask, pause);
}

// decoded is the text of a part of an address. People may write one that is not encoded.
const decoded = text => { try { return decodeURIComponent(text); } catch { return text; } };

function take(answer) {
  if (answer.fields.length) fields = answer.fields;
  if (!columns.length) titles(columns = answer.columns);
  latest = answer;
  last = answer.seconds;
  for (const uuid of [...past.keys()]) if (!answer.caches.some(c => c.uuid === uuid)) past.delete(uuid);
  for (const c of answer.caches) {
    const p = past.get(c.uuid) || {}, times = c.past.seconds;
    // where nobody asked for a while, lines have a gap
    const gaps = times.map((s, k) => s - (k ? times[k - 1] : (p.seconds || []).at(-1) ?? s) > 10 * answer.interval_seconds);
    for (const name in c.past) {
      const values = c.past[name].flatMap((v, k) => gaps[k] ? [name === "seconds" ? v - answer.interval_seconds : null, v] : [v]);
      p[name] = (p[name] || []).concat(values).slice(-KEPT);
    }
    past.set(c.uuid, p);
  }
  if (chosen && !answer.caches.some(c => c.uuid === chosen)) open(null);
  const wanted = decoded(location.hash.slice(1)), named = answer.caches.find(c => c.name === wanted);
  if (!chosen && named) open(named.uuid); // a link to a cache
  else show();
}

// ---------------------------------------------------------------- the list

function show() {
  byId("summary").textContent = latest.summary.join(" · ");
  byId("problems").hidden = !latest.problems.length;
  byId("problems").textContent = latest.problems.join("\n");
  const filter = byId("filter").value.trim().toLowerCase(), rows = latest.caches.filter(c => c.name.toLowerCase().includes(filter));
  rows.sort(compare);
  const body = byId("caches"), focused = document.activeElement && document.activeElement.dataset.uuid;
  body.replaceChildren(...rows.map(row));
  if (focused) for (const line of body.children) if (line.dataset.uuid === focused) line.focus();
  byId("list").hidden = !rows.length;
  byId("none").hidden = rows.length > 0;
  byId("none").textContent = latest.caches.length ? "no name has this text" : latest.none;
  for (const [k, title] of [...byId("titles").children].entries()) title.setAttribute("aria-sort", k !== sorted ? "none" : turned === (k === 0) ? "descending" : "ascending");
  if (chosen) details(latest.caches.find(c => c.uuid === chosen));
}

function compare(a, b) {
  const field = columns[sorted].field, x = a[field], y = b[field];
  if (x === null || y === null) return (x === null) - (y === null); // what is unknown comes last, in either direction
  const order = typeof x === "string" ? x.localeCompare(y) : y - x;
  return turned ? -order : order;
}

function row(c) {
  const line = element("tr");
  line.dataset.uuid = c.uuid;
  line.tabIndex = 0;
  line.classList.toggle("chosen", c.uuid === chosen);
  line.setAttribute("aria-expanded", c.uuid === chosen);
  line.title = c.name + ": click to " + (c.uuid === chosen ? "close" : "open") + " its charts, clients and numbers";
  line.addEventListener("click", () => open(c.uuid === chosen ? null : c.uuid));
  line.addEventListener("keydown", event => { if (event.key === "Enter") open(c.uuid === chosen ? null : c.uuid); });
  for (const column of columns) {
    const cell = element("td", undefined, line);
    cell.className = column.field;
    if (column.colour) cell.append(curve(past.get(c.uuid)[column.field].slice(-60), column));
    element("span", c.texts[column.field], cell).dataset.field = column.field;
  }
  return line;
}

// curve draws the last values of a series. Unknown ones are gaps.
function curve(values, { colour, most }) {
  const SVG = "http://www.w3.org/2000/svg", svg = document.createElementNS(SVG, "svg");
  svg.classList.add("curve");
  svg.setAttribute("viewBox", "0 0 60 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const top = most || Math.max(...values.map(v => v || 0)) || 1;
  let points = [];
  const line = () => {
    if (points.length) {
      const e = document.createElementNS(SVG, "polyline");
      e.setAttribute("points", points.join(" "));
      e.setAttribute("stroke", colour);
      svg.append(e);
    }
    points = [];
  };
  values.forEach((v, k) => { if (v === null) line(); else points.push((60 - values.length + k) + "," + (19 - 18 * v / top).toFixed(2)); });
  line();
  return svg;
}

const titles = columns => columns.forEach((column, k) => {
  const title = element("th", column.title, byId("titles"));
  title.className = column.field;
  title.tabIndex = 0;
  title.scope = "col";
  const sort = () => { turned = sorted === k && !turned; sorted = k; show(); };
  title.addEventListener("click", sort);
  title.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
});
byId("filter").addEventListener("input", () => { if (latest) show(); });

// ---------------------------------------------------------------- an opened cache

function open(uuid) {
  chosen = uuid;
  byId("opened").hidden = !uuid;
  for (const c of charts) c.destroy();
  charts = [];
  const c = latest && latest.caches.find(c => c.uuid === uuid);
  history.replaceState(null, "", c ? "#" + encodeURIComponent(c.name) : location.pathname);
  if (latest) show();
}

function details(c) {
  byId("name").textContent = c.name;
  const facts = byId("facts");
  facts.replaceChildren();
  for (const f of fields) {
    const text = c.texts[f.field];
    if (text === undefined || text === "-" || f.field.startsWith("predicted_") || f.field.startsWith("observed_")) continue;
    const line = element("div", undefined, facts);
    line.title = f.help;
    element("span", f.title, line);
    const cell = element("span", text, line);
    cell.dataset.field = f.field;
    cell.dataset.value = JSON.stringify(c[f.field]);
  }
  const compared = byId("compared");
  compared.replaceChildren();
  if (c.no_prediction) element("td", "nothing to predict yet: " + c.no_prediction, element("tr", undefined, compared));
  else for (const texts of c.epochs) {
    const line = element("tr", undefined, compared);
    for (const text of texts) element("td", text, line);
  }
  const clients = byId("clients").tBodies[0];
  clients.replaceChildren();
  for (const one of c.clients) {
    const line = element("tr", undefined, clients);
    for (const field of ["pid", "kind", "label", "hits_per_second", "misses_per_second", "stored_per_second"]) element("td", one.texts[field], line).dataset.field = field;
  }
  if (!c.clients.length) element("td", "no live clients", element("tr", undefined, clients));
  draw(c, past.get(c.uuid));
}

// Values of a chart, at its axis and below it. Steps of bytes are powers of two.
const bytes = n => { let unit = 0; for (; n >= 1024 && unit < 4; unit++) n /= 1024; return +n.toFixed(2) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit]; };
const number = n => (n < 1000 ? +n.toPrecision(4) : Math.round(n)) + "";
const time = s => new Date(s * 1000).toLocaleTimeString("en-GB");
// The legend shows the values below the pointer. Without a pointer it shows the newest ones.
const pointed = show => (u, value, series, at) => {
  const v = at === null || at === undefined ? u.data[series].at(-1) : value;
  return v === null || v === undefined ? "-" : show(v);
};
const BINARY = Array.from({ length: 50 }, (_, k) => 2 ** k);

function draw(c, p) {
  const width = Math.max(parseInt(getComputedStyle(byId("charts")).gridTemplateColumns), 200); // of the first column
  CHARTS.forEach((chart, k) => {
    const data = [p.seconds, ...chart.lines.map(([field]) => p[field] || p.seconds.map(() => c[field]))]; // limits have no past
    if (charts[k]) { charts[k].setData(data); return; }
    const value = chart.bytes ? bytes : number;
    const axis = { stroke: css("grey"), grid: { stroke: css("pale"), width: 1 }, ticks: { stroke: css("pale"), width: 1 } };
    charts[k] = new uPlot({
      title: chart.title, width, height: 200, cursor: { sync: { key: "caches" } },
      scales: { y: { range: (u, low, high) => [0, chart.most ? chart.most * 1.05 : high > 0 ? high * 1.1 : 1] } }, // the highest line stays whole
      axes: [{ ...axis, space: 80, values: (u, all) => all.map(time) }, { ...axis, incrs: chart.bytes && BINARY, size: (u, texts) => 22 + 7 * Math.max(...(texts || []).map(t => t.length), 4), values: (u, all) => all.map(value) }],
      series: [{ label: "time", value: pointed(time) }, ...chart.lines.map(([, label, colour, dash]) => ({ label, stroke: css(colour), width: 2, dash, points: { show: false }, value: pointed(value) }))],
    }, data, byId("charts"));
  });
}

function redraw() { // sizes or colours have changed
  for (const c of charts) c.destroy();
  charts = [];
  if (chosen && latest) show();
}
let width = innerWidth;
addEventListener("resize", () => { if (width !== innerWidth) { width = innerWidth; redraw(); } });
const wish = matchMedia("(prefers-color-scheme: dark)");
const theme = dark => { root.classList.toggle("dark", dark); redraw(); };
theme(wish.matches);
wish.addEventListener("change", () => theme(wish.matches));
byId("theme").addEventListener("click", () => theme(!root.classList.contains("dark")));

// ---------------------------------------------------------------- a timeline

function drawTimeline() {
  if (!byId("file").files.length) return;
  byId("drawn").hidden = false;
  byId("post").submit();
  byId("timeline").scrollIntoView();
}
byId("file").addEventListener("change", drawTimeline);
addEventListener("dragover", event => { event.preventDefault(); document.body.classList.add("dragging"); });
addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dragging"); });
addEventListener("drop", event => {
  event.preventDefault();
  document.body.classList.remove("dragging");
  if (!event.dataTransfer.files.length) return;
  byId("file").files = event.dataTransfer.files;
  drawTimeline();
});

ask();
