// The address says all that is shown: #show=out&split=train&score=name:1:2&row=120, or step=…, or query=….
const PAGE = 10;
const controls = document.getElementById("controls"), list = document.getElementById("rows");
const collections = new Map(), chosen = new Set();
const KEPT = ["split", "source", "reason", "score"];
let place = new URLSearchParams(), page = null;
let requests = new AbortController();  // of what is shown; another address ends them

const address = (changes, from = place) => {
  const next = new URLSearchParams(from);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== "") next.append(name, one);
  }
  return `#${next}`;
};
const go = (changes, from) => { location.hash = address(changes, from); };
const current = () => collections.get(place.get("show")) || collections.values().next().value;
const request = (names, extra) => {
  const words = new URLSearchParams({ name: current().name, ...extra });
  for (const name of names) for (const value of place.getAll(name)) words.append(name, value);
  return words;
};
const fetchJson = async (path) => {
  const answer = await fetch(path, { signal: requests.signal });
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error || answer.statusText);
  return data;
};
const fail = (error) => list.replaceChildren(make("p", { class: "bad", id: "problem" }, String(error.message)));

const makeLinks = () => ({
  row: (number) => address({ row: number, step: null, query: null }),
  document: current().has_steps ? (origin) => address({ document: origin, row: null, step: null, query: null }) : null,
  picture: (number, index) => `picture?${new URLSearchParams({ name: current().name, row: number, index })}`,
  side: (side) => address({ row: side.row, show: [...collections.values()].find((other) => other.title === side.title)?.name || null }, new URLSearchParams()),
  chosen: (row) => make("input", { type: "checkbox", class: "choose", "aria-label": `choose row ${row.number}`, checked: chosen.has(row.number),
    onchange: (event) => { if (event.target.checked) chosen.add(row.number); else chosen.delete(row.number); drawSave(); } }),
});
const drawSave = () => {
  const save = document.getElementById("save");
  save.hidden = !chosen.size;
  save.textContent = `save ${count(chosen.size)} chosen rows`;
  save.href = `save?${new URLSearchParams({ name: current().name, rows: [...chosen].sort((a, b) => a - b).join(",") })}`;
};

const showRows = async () => {
  const words = request([...KEPT, "row", "step", "batch", "world"], { count: PAGE });
  list.replaceChildren(make("p", { class: "note" }, "reading …"));
  page = await fetchJson(`rows?${words}`);
  const note = page.note ? [make("p", { class: "note", id: "collection-note" }, page.note)] : [];
  const rows = page.rows.length ? page.rows.map((row) => drawRow(row, makeLinks())) : page.note ? [] : [make("p", { class: "note" }, "There are no rows.")];
  list.replaceChildren(...note, ...rows);
  const step = place.has("step") ? ` of step ${count(Number(place.get("step")))}` : "";
  document.getElementById("position").textContent = page.rows.length
    ? `${count(page.position + 1)} to ${count(page.position + page.rows.length)} of ${count(page.total)} rows${step}` : "no rows";
  drawFilters(page.facets);
};
const showMixture = async () => {
  const steps = Number(place.get("steps") || 1000);
  const mixture = await fetchJson(`mixture?${request(["batch", "world"], { steps })}`);
  const svg = (tag, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const width = 900, height = 260, step = width / mixture.points.length;
  const bars = mixture.points.flatMap((point, index) => {
    let below = 0;
    return point.shares.map((share, number) => {
      const title = svg("title", {}, `step ${count(point.step)}: ${mixture.sources[number]} ${(share * 100).toFixed(2)} %`);
      const bar = svg("rect", { class: `c${number % 8}`, x: index * step, y: height * below, width: Math.max(step - 1, 1), height: height * share }, title);
      below += share;
      return bar;
    });
  });
  const percent = (share) => `${(share * 100).toFixed(2)} %`;
  list.replaceChildren(make("figure", { class: "chart", id: "mixture" },
    make("figcaption", {}, make("span", { class: "title" }, "Mixture over steps"), make("span", { class: "unit" }, `share of rows, steps 0 to ${count(mixture.steps)}`)),
    make("ul", { class: "legend" }, ...mixture.sources.map((source, number) => make("li", {}, make("span", { class: `swatch s${number % 8}` }), source))),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Share of each source over the steps of training" }, ...bars),
    make("details", {}, make("summary", {}, "Table"), make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...["step", ...mixture.sources].map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...mixture.points.map((point) => make("tr", {}, make("td", { class: "number" }, make("a", { href: address({ step: point.step, mixture: null, row: null }) }, count(point.step))),
        ...point.shares.map((share) => make("td", { class: "number" }, percent(share)))))))))));
};
const search = async () => {
  const status = make("p", { class: "note", id: "search-status", role: "status" }, "searching …");
  list.replaceChildren(status);
  fetchJson(`rows?${request(KEPT, { count: 1 })}`).then((answer) => drawFilters(answer.facets), () => {});
  let hits = 0;
  const answer = await fetch(`search?${request([...KEPT, "query", "kind"], {})}`, { signal: requests.signal });
  if (!answer.ok) throw new Error((await answer.json()).error);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const hit of lines.map((line) => JSON.parse(line))) {
      if (hit.error) throw new Error(hit.error);
      if (hit.searched !== undefined) { status.textContent = `${count(hits)} found, searched up to row ${count(hit.searched)}`; continue; }
      if (hit.done) continue;
      hits++;
      list.append(make("article", { class: "sample hit" }, make("header", {},
        make("a", { href: makeLinks().row(hit.number) }, `row ${count(hit.number)}`)),
        make("pre", {}, hit.before, make("mark", {}, hit.match), hit.after)));
    }
  }
  status.textContent = `${count(hits)} found${hits >= 200 ? ", more are not shown" : ""}; the search is done`;
  status.dataset.done = "1";
};
const turnPage = (name) => { if (page && page[name] !== null && page[name] !== undefined) go({ row: page[name], query: null }); };

const choose = (label, id, options, value, change) => make("label", { class: "field" }, label,
  make("select", { id, onchange: (event) => change(event.target.value) },
    ...options.map(([name, text]) => make("option", { value: name, selected: name === value }, text))));
const enter = (id, label, attributes, submit) => {
  const input = make("input", { id, "aria-label": label, placeholder: label, ...attributes });
  return make("form", { onsubmit: (event) => { event.preventDefault(); submit(input.value.trim()); } }, input);
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
  const fields = ["split", "source", "reason"].filter((name) => facets[name].length).map((name) => choose(name, `filter-${name}`,
    [["", "all"], ...facets[name].map(([value, number]) => [value, `${value} (${count(number)})`])], place.get(name) || "", (value) => go({ [name]: value, row: null, step: null })));
  const change = (score, low, high) => go({ row: null, step: null,
    score: facets.scores.map((other) => (other.name === score.name ? `${score.name}:${low}:${high}` : `${other.name}:${other.low ?? ""}:${other.high ?? ""}`)) });
  const scores = facets.scores.map((score) => {
    const low = make("input", { type: "number", step: "any", value: score.low, "aria-label": `least ${score.name}`, placeholder: score.least, id: `low-${score.name}`, onchange: () => change(score, low.value, high.value) });
    const high = make("input", { type: "number", step: "any", value: score.high, "aria-label": `most ${score.name}`, placeholder: score.most, id: `high-${score.name}`, onchange: () => change(score, low.value, high.value) });
    return make("span", { class: "field score" }, score.name, drawStrip(score), low, "to", high,
      make("button", { type: "button", "aria-label": `remove the filter by ${score.name}`, onclick: () => go({ row: null, score: place.getAll("score").filter((other) => !other.startsWith(`${score.name}:`)) }) }, "×"));
  });
  const others = current().scores.filter((name) => !facets.scores.some((score) => score.name === name));
  const add = others.length && !place.has("step") ? [choose("score", "add-score", [["", "filter by …"], ...others.map((name) => [name, name])], "",
    (name) => { if (name) go({ row: null, score: [...place.getAll("score"), `${name}::`] }); })] : [];
  bar.replaceChildren(...fields, ...scores, ...add);
  if (focused) document.getElementById(focused)?.focus();
};
const drawControls = () => {
  const collection = current();
  const names = [...collections.values()].map((other) => [other.name, other.rows === null ? other.title : `${other.name} (${count(other.rows)})`]);
  const batch = make("input", { type: "number", id: "batch", min: "1", value: place.get("batch") || "8", "aria-label": "rows of a rank in a step" });
  const world = make("input", { type: "number", id: "world", min: "1", value: place.get("world") || "1", "aria-label": "number of ranks" });
  const order = () => ({ batch: batch.value, world: world.value, row: null, query: null, document: null });
  const kinds = [["text", "text"], ["regex", "regular expression"], ...(collection.has_tokens ? [["token", "token id"]] : [])];
  const bars = [
    make("div", { class: "bar" },
      choose("show", "name", names, collection.name, (name) => { chosen.clear(); go({ show: name }, new URLSearchParams()); }),
      enter("query", "search (press /)", { type: "search", value: place.get("query") || "" }, (query) => go({ query, kind: document.getElementById("kind").value, row: null, step: null, mixture: null, document: null })),
      choose("for", "kind", kinds, place.get("kind") || "text", () => {}),
      enter("row", "row (g)", { inputmode: "numeric" }, (row) => go({ row: row.replaceAll(",", ""), query: null, step: null, document: null, mixture: null })),
      collection.has_steps ? enter("document", "document: source:file@position", {}, (origin) => go({ document: origin, query: null, step: null, row: null })) : null),
    collection.has_steps ? make("div", { class: "bar" },
      enter("step", "step of training (s)", { inputmode: "numeric" }, (step) => go({ ...order(), step: step.replaceAll(",", ""), mixture: null })),
      make("label", { class: "field" }, "rows a rank", batch), make("label", { class: "field" }, "ranks", world),
      make("button", { type: "button", id: "mix", onclick: () => go({ ...order(), mixture: "1", step: null }) }, "mixture over steps")) : null,
    make("div", { class: "bar", id: "filters" }),
    make("div", { class: "bar" }, make("button", { type: "button", id: "previous", onclick: () => turnPage("previous") }, "← previous"),
      make("button", { type: "button", id: "next", onclick: () => turnPage("next") }, "next →"), make("span", { class: "note", id: "position" }),
      make("a", { id: "save", hidden: true, download: "rows.html" })),
    make("p", { class: "note", id: "help" },
      ...(collection.has_tokens ? ["The ground changes with every token; ", make("u", {}, "underlined"), " tokens are not trained; point at one for its id, bytes and origin. "] : []),
      `Keys: / search, g row, ${collection.has_steps ? "s step, " : ""}f filters, n next, p previous, G last page.`)];
  controls.replaceChildren(...bars.filter((bar) => bar !== null));
  drawSave();
};
const update = async () => {
  const asked = location.hash;
  requests.abort();
  requests = new AbortController();
  const before = current();
  place = new URLSearchParams(location.hash.slice(1));
  if (before !== current() || !controls.firstChild) drawControls();
  document.getElementById("position").textContent = "";
  for (const id of ["query", "step", "document", "kind", "batch", "world"]) { const input = document.getElementById(id); if (input && input !== document.activeElement) input.value = place.get(id) || { kind: "text", batch: "8", world: "1" }[id] || ""; }
  try {
    if (place.has("show") && !collections.has(place.get("show"))) throw new Error(`nothing here is called "${place.get("show")}": choose under "show"`);
    if (place.has("query")) await search();
    else if (place.has("mixture")) await showMixture();
    else if (place.has("document")) {
      const { row } = await fetchJson(`document?${new URLSearchParams({ name: current().name, place: place.get("document") })}`);
      if (location.hash === asked) location.replace(address({ row, document: null, ...Object.fromEntries(KEPT.map((name) => [name, null])) }));  // a filter could hide it
    } else await showRows();
  } catch (error) { if (error.name !== "AbortError") fail(error); }
};
addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const focus = (id) => () => document.getElementById(id)?.focus();
  const action = { "/": focus("query"), g: focus("row"), s: focus("step"), f: () => document.querySelector("#filters select")?.focus(),
    n: () => turnPage("next"), p: () => turnPage("previous"), ArrowRight: () => turnPage("next"), ArrowLeft: () => turnPage("previous"), G: () => turnPage("last") }[event.key];
  if (action) { event.preventDefault(); action(); }
});
fetchJson("info").then((answer) => {
  for (const collection of answer) collections.set(collection.name, collection);
  addEventListener("hashchange", update);
  update();
}).catch(fail);
