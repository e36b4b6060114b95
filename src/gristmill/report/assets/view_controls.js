// What the viewer's page is asked by: the address, filters, the heads of columns, and the order of training.
// The address says all that is shown: #show=out&split=train&score=name:1:2&where=n>5&sort=-n&at=50&row=120, or step=…, or query=….
const controls = document.getElementById("controls"), list = document.getElementById("rows"), panel = document.getElementById("panel");
const collections = new Map(), chosen = new Set(), charts = new Map();
const CHART_ROWS = 100000;  // as in column_queries.py
const KEPT = ["split", "source", "reason", "score", "where"];
let place = new URLSearchParams(), page = null, sources = [], command = "gristmill view", returnFocus = false;
let requests = new AbortController();  // of what is shown; another address ends them

const address = (changes, from = place) => {
  const next = new URLSearchParams(from);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined && one !== "") next.append(name, one);
  }
  return `#${next}`;
};
const go = (changes, from) => {
  const next = address(changes, from);
  if (next === location.hash) update(); else location.hash = next;
};
const narrow = (changes) => go({ at: null, row: null, part: null, step: null, start: null, ...changes });
// `dropped` is enough where only one dataset is shown.
const findName = (name) => {
  if (collections.has(name)) return name;
  const named = [...collections.keys()].filter((full) => full.endsWith(` · ${name}`));
  return named.length === 1 ? named[0] : null;
};
const current = () => collections.get(place.get("show")) || collections.values().next().value;
const pageRows = () => (current().has_tokens ? 20 : 50);
const request = (names, extra) => {
  const words = new URLSearchParams({ name: current().name, ...extra });
  for (const name of names) for (const value of place.getAll(name)) words.append(name, value);
  return words;
};
const drawSave = () => {
  const save = document.getElementById("save");
  save.hidden = !chosen.size;
  save.textContent = `save ${count(chosen.size)} chosen rows`;
  save.href = `save?${new URLSearchParams({ name: current().name, rows: [...chosen].sort((a, b) => a - b).join(",") })}`;
};

const quote = (name) => `"${name.replaceAll('"', '""')}"`;
const toggle = (condition) => {
  const all = place.getAll("where");
  narrow({ where: all.includes(condition) ? all.filter((other) => other !== condition) : [...all, condition], query: null });
};
// A click on a head sorts upwards, then downwards, then not at all; a click on a bar or a value filters by it.
const drawHead = (name, column, isExtra) => {
  if (!column) return make("th", { scope: "col", class: isExtra ? "extra" : null }, plain(name));
  const sort = place.get("sort"), isUp = sort === column, isDown = sort === `-${column}`;
  return make("th", { scope: "col", class: isExtra ? `extra${isUp || isDown ? " kept" : ""}` : null, "aria-sort": isUp ? "ascending" : isDown ? "descending" : null },
    make("button", { type: "button", class: "sort", "data-column": column, onclick: () => narrow({ sort: isUp ? `-${column}` : isDown ? null : column, query: null }) }, `${plain(name)}${isUp ? " ↑" : isDown ? " ↓" : ""}`),
    name === "text" ? null : make("div", { class: "chart", "data-chart": column }));
};
const drawCharts = async () => {
  const signal = requests.signal, { name } = current();
  for (const node of list.querySelectorAll("[data-chart]")) {
    const key = `${name}\n${node.dataset.chart}`;
    try {
      if (!charts.has(key)) charts.set(key, await fetchJson(`column?${request([], { column: node.dataset.chart })}`));
    } catch (error) {
      if (error.name !== "AbortError") node.append(make("span", { class: "quiet", title: error.message }, "not counted"));
      if (error.name === "AbortError" || signal.aborted) return;
      continue;
    }
    node.replaceChildren(drawChart(charts.get(key)));
  }
  if (current().rows > CHART_ROWS && list.querySelector("[data-chart]") && !document.getElementById("charts-note")) list.append(make("p", { class: "note", id: "charts-note" }, `The charts in the heads count the first ${count(CHART_ROWS)} rows.`));
};
const showValue = (value) => String(Number(value.toPrecision(4)));
const drawChart = (column) => {
  const scope = current().rows > CHART_ROWS ? `of the first ${count(CHART_ROWS)} rows` : `of ${count(column.rows)} rows`;
  const applied = new Set(place.getAll("where"));
  const bar = (condition, number, attributes, label, ...children) => make("button", { type: "button", tabindex: "-1", "data-where": condition, "aria-pressed": String(applied.has(condition)),
    "aria-label": `${label}: ${count(number)}`, title: `${label}: ${count(number)} ${scope}`, onclick: () => toggle(condition), ...attributes }, ...children);
  let bars;
  if (column.counts) {
    const most = Math.max(1, ...column.counts), { edges } = column, last = column.counts.length - 1;
    bars = column.counts.map((number, index) => bar(`${quote(column.name)} >= ${edges[index]} and ${quote(column.name)} ${index === last ? "<=" : "<"} ${edges[index + 1]}`, number, { class: "bin" },
      `${showValue(edges[index])} to ${showValue(edges[index + 1])}`, make("i", { style: `height:${number ? Math.max(6, Math.round((number / most) * 100)) : 0}%` })));
  } else bars = column.values.map(([value, number]) => bar(`${quote(column.name)} = '${value.replaceAll("'", "''")}'`, number, { class: "value" }, plain(value) || "(empty)",
    make("span", { class: "name" }, plain(value) || "(empty)"), make("span", { class: "share" }, count(number)), make("i", { style: `width:${Math.round((number / Math.max(1, column.rows)) * 100)}%` })));
  if (bars.length) bars[0].tabIndex = 0;  // one stop for Tab; arrows move inside
  const move = (event) => {
    const index = bars.indexOf(event.target), next = bars[index + ({ ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key] || NaN)];
    if (next) { event.preventDefault(); event.target.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  };
  const ends = column.counts?.length ? [make("div", { class: "ends" }, make("span", {}, showValue(column.edges[0])), make("span", {}, showValue(column.edges.at(-1))))]
    : column.distinct > bars.length ? [make("div", { class: "ends" }, `about ${count(column.distinct)} values`)] : [];
  return make("div", { title: scope }, make("div", { class: `chart-bars${column.counts ? " bins" : ""}`, role: "group", "aria-label": `values of ${plain(column.name)} ${scope}`, onkeydown: move }, ...bars), ...ends);
};

const pick = (label, id, options, value, change) => make("label", { class: "field" }, label,
  make("select", { id, onchange: (event) => change(event.target.value) },
    ...options.map(([name, text]) => make("option", { value: name, selected: name === value }, plain(text)))));
const enter = (id, label, attributes, submit, isOnce) => {
  const input = make("input", { id, "aria-label": label, placeholder: label, ...attributes });
  return make("form", { onsubmit: (event) => { event.preventDefault(); returnFocus = true; submit(input.value.trim()); if (isOnce) input.value = ""; } }, input);
};
const drawStrip = (score) => {
  const most = Math.max(1, ...score.counts);
  return make("span", { class: "strip", role: "img", "aria-label": `values of ${score.name} from ${score.least} to ${score.most}` },
    ...score.counts.map((number) => make("i", { style: `height:${Math.round((number / most) * 100)}%`, title: count(number) })));
};
// Each filter shows how many rows the other filters leave of every choice.
const drawFilters = (facets) => {
  const bar = document.getElementById("filters");
  const focused = document.activeElement?.id;
  const fields = ["split", "source", "reason"].filter((name) => facets[name].length).map((name) => {
    const value = place.get(name) || "", known = facets[name].some(([one]) => one === value) || !value ? [] : [[value, value]];
    return pick(name, `filter-${name}`, [["", "all"], ...facets[name].map(([one, number]) => [one, `${one} (${count(number)})`]), ...known], value, (next) => narrow({ [name]: next }));
  });
  const change = (score, low, high) => narrow({
    score: facets.scores.map((other) => (other.name === score.name ? `${score.name}:${low}:${high}` : `${other.name}:${other.low ?? ""}:${other.high ?? ""}`)) });
  const scores = facets.scores.map((score) => {
    const low = make("input", { type: "number", step: "any", value: score.low, "aria-label": `least ${score.name}`, placeholder: score.least, id: `low-${score.name}`, onchange: () => change(score, low.value, high.value) });
    const high = make("input", { type: "number", step: "any", value: score.high, "aria-label": `most ${score.name}`, placeholder: score.most, id: `high-${score.name}`, onchange: () => change(score, low.value, high.value) });
    return make("span", { class: "field score" }, plain(score.name), drawStrip(score), low, "to", high,
      make("button", { type: "button", "aria-label": `remove the filter by ${score.name}`, onclick: () => narrow({ score: place.getAll("score").filter((other) => !other.startsWith(`${score.name}:`)) }) }, "×"));
  });
  const others = current().scores.filter((name) => !facets.scores.some((score) => score.name === name));
  const add = others.length && !place.has("step") ? [pick("score", "add-score", [["", "filter by …"], ...others.map((name) => [name, name])], "",
    (name) => { if (name) narrow({ score: [...place.getAll("score"), `${name}::`] }); })] : [];
  const conditions = place.getAll("where").map((condition) => make("span", { class: "chip" }, plain(condition),
    make("button", { type: "button", "aria-label": `remove the condition ${condition}`, onclick: () => toggle(condition) }, "×")));
  bar.replaceChildren(...fields, ...scores, ...add, ...conditions);
  if (focused) document.getElementById(focused)?.focus();
};
const drawControls = () => {
  const collection = current();
  const names = [...collections.values()].map((other) => [other.name, other.rows === null ? other.title : `${other.name} (${count(other.rows)})`]);
  const batch = make("input", { type: "number", id: "batch", min: "1", value: place.get("batch") || "8", "aria-label": "rows of a rank in a step" });
  const world = make("input", { type: "number", id: "world", min: "1", value: place.get("world") || "1", "aria-label": "number of ranks" });
  const order = () => ({ batch: batch.value, world: world.value, at: null, row: null, query: null, document: null });
  const kinds = [["text", "text"], ["regex", "regular expression"], ...(collection.has_tokens ? [["token", "token id"]] : [])];
  const bars = [
    make("div", { class: "bar" },
      pick("show", "name", names, collection.name, (name) => { chosen.clear(); go({ show: name }, new URLSearchParams()); }),
      enter("query", "search (/)", { type: "search", value: place.get("query") || "" }, (query) => narrow({ query, kind: document.getElementById("kind").value, mixture: null, document: null })),
      pick("for", "kind", kinds, place.get("kind") || "text", () => {}),
      Object.keys(collection.columns).length ? enter("where", "where, in SQL (w): length(text) > 500", { spellcheck: "false", autocomplete: "off" }, (condition) => { if (condition && !place.getAll("where").includes(condition)) toggle(condition); }, true) : null,
      enter("row", collection.has_steps ? "row or source:file@position (g)" : "row (g)", {}, (text) => go({ ...(text.includes("@") ? { document: text, row: null } : { row: text.replaceAll(",", ""), document: null }), part: null, at: null, query: null, step: null, mixture: null }), true)),
    make("div", { class: "bar", id: "filters" }),
    collection.has_steps ? make("details", { id: "order", open: place.has("step") || place.has("mixture") }, make("summary", {}, "Order of training"), make("div", { class: "bar" },
      enter("step", "step of training (s)", { inputmode: "numeric" }, (number) => go({ ...order(), step: number.replaceAll(",", ""), mixture: null })),
      make("label", { class: "field" }, "rows a rank", batch), make("label", { class: "field" }, "ranks", world),
      make("button", { type: "button", id: "mix", onclick: () => go({ ...order(), mixture: "1", step: null }) }, "mixture over steps"))) : null,
    make("div", { class: "bar", id: "pager" }, make("button", { type: "button", id: "previous", onclick: () => turnPage(-1) }, "← previous"),
      make("button", { type: "button", id: "next", onclick: () => turnPage(1) }, "next →"), make("span", { class: "note", id: "position", role: "status" }),
      make("a", { id: "save", hidden: true, download: "rows.html" }),
      make("details", { id: "help" }, make("summary", {}, "Keys"), make("p", { class: "note" },
        `j k or ↓ ↑ go from row to row, Enter opens one, Esc closes it; ← → or p n turn pages, G the last; / search, g row, f filters${Object.keys(collection.columns).length ? ", w condition" : ""}${collection.has_steps ? ", s step" : ""}.`,
        ...(collection.has_tokens ? [" The ground changes with every token; ", make("u", {}, "underlined"), " tokens are not trained; point at one for its id, bytes and origin."] : [])))),
    collection.missing ? make("p", { class: "note", id: "missing" }, collection.missing) : null];
  controls.replaceChildren(...bars.filter((bar) => bar !== null));
  sources = [];
  drawSave();
};
