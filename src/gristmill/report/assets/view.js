// Everything from the server becomes text nodes, never markup. The address says what is shown: #name/lane/row.
const make = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
};
const PAGE = 10;
const controls = document.getElementById("controls"), list = document.getElementById("rows");
const collections = new Map();
let place = { name: "", lane: "", row: 0 }, searching = null;

const readAddress = () => {
  const [name, lane, row] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const first = collections.keys().next().value;
  const known = collections.has(name) ? name : first;
  const lanes = collections.get(known).lanes;
  const chosen = lanes.some((other) => other.name === lane) ? lane : "";
  return { name: known, lane: chosen, row: Math.max(0, Number.parseInt(row, 10) || 0) };
};
const go = (change) => {
  const next = { ...place, ...change };
  location.hash = [next.name, next.lane, next.row].map(encodeURIComponent).join("/");
};
const range = () => {
  const collection = collections.get(place.name);
  const lane = collection.lanes.find((other) => other.name === place.lane);
  return lane ? [lane.start, lane.start + lane.rows] : [0, collection.rows];
};
const fetchJson = async (path) => {
  const answer = await fetch(path);
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error || answer.statusText);
  return data;
};

const drawTokens = (documents) => documents.map((entry) => make("div", { class: "document" },
  make("p", { class: "note" }, entry.origin, ` · ${entry.tokens.length.toLocaleString("en-US")} tokens`),
  make("pre", { tabindex: "0" }, ...entry.tokens.map(([id, text, trained], number) => make("span",
    { class: `token t${number % 2}${trained ? "" : " untrained"}`, title: `id ${id}${trained ? "" : ", not trained"}` }, text)))));
const drawRow = (row) => make("article", { class: "sample", id: `row-${row.number}` },
  make("header", {}, make("b", {}, `row ${row.number.toLocaleString("en-US")}`),
    row.reason ? make("b", { class: "bad" }, row.reason) : null, row.origin ? make("span", {}, row.origin) : null,
    make("a", { href: `#${[place.name, place.lane, row.number].map(encodeURIComponent).join("/")}` }, "link")),
  ...(row.documents ? drawTokens(row.documents) : []),
  ...(row.turns || []).map((turn) => make("div", { class: `turn ${turn.role === "user" ? "user" : "other"}` },
    make("b", {}, turn.role), make("pre", { tabindex: "0" }, turn.text))),
  row.text !== undefined ? make("pre", { tabindex: "0" }, row.text) : null,
  row.columns && Object.keys(row.columns).length ? make("details", { open: row.text === undefined && !row.turns },
    make("summary", {}, "Columns"), make("div", { class: "scroll" }, make("table", {}, make("tbody", {},
      ...Object.entries(row.columns).map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value))))))) : null);

const showRows = async () => {
  stopSearch();
  const [start, end] = range();
  const first = Math.min(Math.max(place.row, start), Math.max(start, end - 1));
  list.replaceChildren(make("p", { class: "note" }, "reading …"));
  try {
    const rows = await fetchJson(`rows?name=${encodeURIComponent(place.name)}&start=${first}&count=${Math.min(PAGE, end - first)}`);
    list.replaceChildren(...(rows.length ? rows.map(drawRow) : [make("p", { class: "note" }, "There are no rows.")]));
    list.dataset.first = first;
    document.getElementById("position").textContent = rows.length
      ? `rows ${first.toLocaleString("en-US")} to ${(first + rows.length - 1).toLocaleString("en-US")} of ${end.toLocaleString("en-US")}` : "no rows";
  } catch (error) { list.replaceChildren(make("p", { class: "bad" }, String(error.message))); }
};
const turnPage = (step) => {
  const [start, end] = range();
  go({ row: Math.min(Math.max(Number(list.dataset.first || start) + step * PAGE, start), Math.max(start, end - 1)) });
};
const stopSearch = () => { if (searching) { searching.abort(); searching = null; } };
const search = async (query, isRegex) => {
  stopSearch();
  searching = new AbortController();
  const mine = searching;
  const [start, end] = range();
  const status = make("p", { class: "note", id: "search-status" }, "searching …");
  list.replaceChildren(status);
  let hits = 0;
  try {
    const words = new URLSearchParams({ name: place.name, query, start, end, regex: isRegex ? "1" : "0" });
    const answer = await fetch(`search?${words}`, { signal: mine.signal });
    if (!answer.ok) throw new Error((await answer.json()).error);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const hit of lines.map((line) => JSON.parse(line))) {
        if (hit.searched !== undefined) { status.textContent = `${hits} found, searched up to row ${hit.searched.toLocaleString("en-US")}`; continue; }
        hits++;
        list.append(make("article", { class: "sample hit" }, make("header", {},
          make("a", { href: `#${[place.name, place.lane, hit.number].map(encodeURIComponent).join("/")}` }, `row ${hit.number.toLocaleString("en-US")}`)),
          make("pre", {}, hit.before, make("mark", {}, hit.match), hit.after)));
      }
    }
    status.textContent = `${hits} found${hits >= 200 ? ", more are not shown" : ""}; the search is done`;
    status.dataset.done = "1";
  } catch (error) { if (error.name !== "AbortError") status.textContent = String(error.message); }
};

const drawControls = () => {
  const choose = (label, id, options, value, change) => make("label", { class: "field" }, label,
    make("select", { id, onchange: (event) => change(event.target.value) },
      ...options.map(([name, text]) => make("option", { value: name, selected: name === value }, text))));
  const collection = collections.get(place.name);
  const names = [...collections.values()].map((other) => [other.name, `${other.name} (${other.rows.toLocaleString("en-US")})`]);
  const lanes = [["", "all"], ...collection.lanes.map((lane) => [lane.name, `${lane.name} (${lane.rows.toLocaleString("en-US")})`])];
  const query = make("input", { type: "search", id: "query", placeholder: "search (press /)", "aria-label": "Search" });
  const regex = make("input", { type: "checkbox", id: "regex" });
  const row = make("input", { type: "number", id: "row", min: "0", "aria-label": "Go to row", placeholder: "row (g)" });
  controls.replaceChildren(
    make("div", { class: "bar" },
      choose("show", "name", names, place.name, (name) => go({ name, lane: "", row: 0 })),
      choose("only", "lane", lanes, place.lane, (lane) => go({ lane, row: 0 })),
      make("form", { onsubmit: (event) => { event.preventDefault(); if (query.value) search(query.value, regex.checked); else showRows(); } },
        query, make("label", { class: "field" }, regex, "regular expression")),
      make("form", { onsubmit: (event) => { event.preventDefault(); go({ row: Number(row.value) }); } }, row)),
    make("div", { class: "bar" }, make("button", { type: "button", id: "previous", onclick: () => turnPage(-1) }, "← previous"),
      make("button", { type: "button", id: "next", onclick: () => turnPage(1) }, "next →"), make("span", { class: "note", id: "position" })));
};
const update = () => {
  const before = place;
  place = readAddress();
  if (before.name !== place.name || before.lane !== place.lane || !controls.firstChild) drawControls();
  showRows();
};
addEventListener("hashchange", update);
addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const action = { "/": () => document.getElementById("query").focus(), g: () => document.getElementById("row").focus(),
    n: () => turnPage(1), p: () => turnPage(-1), ArrowRight: () => turnPage(1), ArrowLeft: () => turnPage(-1) }[event.key];
  if (action) { event.preventDefault(); action(); }
});
fetchJson("info").then((answer) => {
  for (const collection of answer) collections.set(collection.name, collection);
  update();
}).catch((error) => list.replaceChildren(make("p", { class: "bad" }, String(error.message))));
