// The viewer's page: a list of rows, and the chosen one next to it. Each update draws what the address says.
const fetchJson = async (path) => {
  const answer = await ask(path);
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error || answer.statusText);
  return data;
};
const ask = async (path) => {
  try { return await fetch(path, { signal: requests.signal }); } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`The viewer no longer answers. Start it again (${command}) and open the address that it prints; what follows # in this one shows the same rows there.`);
  }
};
const fail = (error) => {
  list.replaceChildren(make("p", { class: "bad", id: "problem", role: "alert" }, String(error.message)));
  if (document.getElementById("filters") && !document.querySelector("#filters .field")) drawFilters({ split: [], source: [], reason: [], scores: [] });  // a wrong condition can be removed
};

const lines = () => [...list.querySelectorAll("a.line")];
const makeLinks = () => ({
  document: current().has_steps ? (origin) => address({ document: origin, row: null, step: null, query: null }) : null,
  picture: (number, index) => `picture?${new URLSearchParams({ name: current().name, row: number, index })}`,
  side: (side) => address({ row: side.row, show: [...collections.values()].find((other) => other.title === side.title)?.name || null }, new URLSearchParams()),
  template: place.get("tokens") === "template",
});
const drawSource = (source) => {
  const number = sources.indexOf(source);
  return [make("span", { class: `swatch s${number < 0 ? 7 : number % 8}`, "aria-hidden": "true" }), plain(source)];
};
const drawNumber = (value) => make("td", { class: "number" }, value === undefined ? "" : count(value));
const drawCell = (name, value, isNumber) => {
  const text = value === undefined || value === null ? "" : isNumber ? String(Number(Number(value).toPrecision(6))) : plain(String(value));
  return make("td", { class: `extra${isNumber ? " number" : ""}${[name, `-${name}`].includes(place.get("sort")) ? " kept" : ""}` }, text);
};
const drawLine = (row, line, part, names, shape) => {
  const href = address({ row: row.number, part: part || null });
  const label = row.step ? `${count(row.number)} · rank ${row.step.rank}` : count(row.number);
  return make("tr", { "data-row": row.number, "data-part": part, onclick: (event) => { if (!event.target.closest("a, input, button")) choose(row.number, part); } },
    make("td", { class: "pick" }, part ? null : make("input", { type: "checkbox", class: "choose", "aria-label": `choose row ${row.number}`, checked: chosen.has(row.number),
      onchange: (event) => { if (event.target.checked) chosen.add(row.number); else chosen.delete(row.number); drawSave(); } })),
    make("td", { class: "number" }, make("a", { class: "line", href, onclick: (event) => { event.preventDefault(); choose(row.number, part); }, "aria-label": `row ${row.number}${line.source ? `, ${plain(line.source)}` : ""}` }, label)),
    shape.source ? make("td", { class: "source" }, ...drawSource(line.source || "")) : null,
    shape.reason ? make("td", { class: "reason" }, plain([row.reason, row.why].filter((text) => text).join(" · "))) : null,
    make("td", { class: row.bad ? "text bad" : "text" }, plain(row.bad || line.text)),
    shape.tokens ? drawNumber(line.num_tokens) : null, shape.trained ? drawNumber(line.num_trained) : null,
    ...names.map((name) => drawCell(name, row.cells[name], shape.numbers.has(name))));
};
const drawRows = (rows) => {
  const all = rows.flatMap((row) => row.lines), known = Object.keys(current().columns);
  const names = [...new Set([...known.filter((name) => rows.some((row) => name in row.cells)), ...rows.flatMap((row) => Object.keys(row.cells))])]
    .filter((name) => name !== "source" && !rows.some((row) => /^[{[]/.test(row.cells[name]))).slice(0, 12);  // lists and objects are in the panel
  const isNumeric = (value) => value === undefined || (value !== "" && Number.isFinite(Number(value)));
  const shape = { source: all.some((line) => line.source), reason: rows.some((row) => row.reason), tokens: all.some((line) => line.num_tokens !== undefined), trained: all.some((line) => line.num_trained !== undefined),
    numbers: new Set(names.filter((name) => current().columns[name] !== "text" && rows.every((row) => isNumeric(row.cells[name])))) };
  const heads = ["", "row", shape.source ? "source" : null, shape.reason ? "reason" : null, rows.some((row) => row.lines.length > 1) ? "document" : "text", shape.tokens ? "tokens" : null, shape.trained ? "trained" : null];
  return make("div", { class: "scroll" }, make("table", { id: "table" },
    make("thead", {}, make("tr", {}, ...heads.filter((name) => name !== null).map((name) => drawHead(name, name && current().columns[name] ? name : null, false)), ...names.map((name) => drawHead(name, current().columns[name] ? name : null, true)))),
    make("tbody", {}, ...rows.flatMap((row) => row.lines.map((line, part) => drawLine(row, line, part, names, shape))))));
};
const labelOf = (row) => row.reason || row.lines[0].text || Object.values(row.cells).find((cell) => typeof cell === "string" && !/ bytes$/.test(cell)) || row.lines[0].origin;
const drawGrid = (rows) => make("ul", { class: "grid" }, ...rows.map((row) => make("li", { "data-row": row.number, "data-part": 0 },
  make("a", { class: "line", href: address({ row: row.number }), onclick: (event) => { event.preventDefault(); choose(row.number, 0); }, "aria-label": `row ${row.number}, ${plain(labelOf(row))}` },
    row.pictures ? make("img", { src: makeLinks().picture(row.number, 0), alt: "", loading: "lazy" }) : make("span", { class: "empty" }, plain(row.bad || "no picture")),
    make("span", { class: "caption" }, `${count(row.number)} `, ...(sources.length > 1 ? drawSource(row.lines[0].source || "") : []), make("br"), plain(labelOf(row)))))));

const showRows = async () => {
  const row = place.has("row") && !place.has("at") ? { row: place.get("row") } : {};
  const words = request([...KEPT, "sort", "at", "step", "batch", "world"], { count: pageRows(), ...row });
  page = await fetchJson(`rows?${words}`);
  sources = page.facets.source.length ? page.facets.source.map(([name]) => name) : sources;
  const note = page.note ? [make("p", { class: "note", id: "collection-note" }, plain(page.note))] : [];
  const hasPictures = page.rows.length && page.rows.filter((one) => one.pictures).length * 2 >= page.rows.length;
  const empty = page.note && !place.getAll("where").length ? [] : [make("p", { class: "note" }, "There are no rows.")];
  list.replaceChildren(...note, ...(page.rows.length ? [hasPictures ? drawGrid(page.rows) : drawRows(page.rows)] : empty));
  const step = place.has("step") ? ` of step ${count(Number(place.get("step")))}` : "";
  document.getElementById("position").textContent = page.rows.length
    ? `${count(page.position + 1)} to ${count(page.position + page.rows.length)} of ${count(page.total)} rows${step}` : "no rows";
  drawFilters(page.facets);
  drawCharts();
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
  const body = make("tbody"), more = make("p");
  list.replaceChildren(status, make("div", { class: "scroll" }, make("table", { id: "table" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "row"), make("th", { scope: "col" }, "found"))), body)), more);
  page = null;
  document.getElementById("position").textContent = "";
  fetchJson(`rows?${request(KEPT, { count: 1 })}`).then((answer) => drawFilters(answer.facets), () => {});
  const answer = await ask(`search?${request([...KEPT, "query", "kind", "start"], {})}`);
  if (!answer.ok) throw new Error((await answer.json()).error);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", shown = 0, found = 0, last = 0;
  const from = place.has("start") ? ` from row ${count(Number(place.get("start")))} on` : "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const hit of parts.map((part) => JSON.parse(part))) {
      if (hit.error) throw new Error(hit.error);
      if (hit.searched !== undefined) { found = hit.found; status.textContent = `${count(found)} found${from}, searched up to row ${count(hit.searched)}`; continue; }
      if (hit.done) { status.dataset.done = "1"; continue; }
      shown++;
      last = hit.number;
      body.append(make("tr", { class: "hit", "data-row": hit.number, "data-part": 0, onclick: (event) => { if (!event.target.closest("a")) choose(hit.number, 0); } },
        make("td", { class: "number" }, make("a", { class: "line", href: address({ row: hit.number }), onclick: (event) => { event.preventDefault(); choose(hit.number, 0); } }, count(hit.number))),
        make("td", { class: "text" }, plain(hit.before), make("mark", {}, plain(hit.match)), plain(hit.after))));
    }
  }
  if (!status.dataset.done) throw new Error("The search broke off: the viewer no longer answers.");
  status.textContent = `${count(found)} ${found === 1 ? "row" : "rows"} found${from}${found > shown ? `; the first ${count(shown)} are shown` : ""}`;
  if (found > shown) more.append(make("a", { id: "more", href: address({ start: last + 1, row: null }) }, `the hits after row ${count(last)}`));
};

// The panel has the whole record of the row in the address.
const showPanel = async () => {
  const number = place.get("row"), part = Number(place.get("part") || 0);
  panel.hidden = number === null;
  document.getElementById("work").classList.toggle("open", number !== null);
  mark();
  if (number === null) return;
  if (panel.dataset.shown !== `${current().name} ${number} ${place.get("tokens")}`) {
    let record;
    try { record = await fetchJson(`record?${request([], { row: number })}`); } catch (error) {
      if (error.name === "AbortError") throw error;
      panel.dataset.shown = "";
      panel.replaceChildren(drawPanelBar(null), make("p", { class: "bad", id: "row-problem", role: "alert" }, error.message));
      return;
    }
    panel.dataset.shown = `${current().name} ${number} ${place.get("tokens")}`;
    panel.replaceChildren(drawPanelBar(record), drawRow(record, makeLinks()));
    panel.scrollTop = 0;
  }
  const shown = part ? panel.querySelectorAll(".document")[part] : null;
  if (shown) panel.scrollTop += shown.getBoundingClientRect().top - panel.getBoundingClientRect().top - 48;  // below its bar
};
const copy = async (event, text) => {
  const button = event.target, name = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "not allowed here"; }
  setTimeout(() => { button.textContent = name; }, 1500);
};
const textOf = (record) => record.text ?? (record.turns ? record.turns.map((turn) => `${turn.role}: ${turn.text}`).join("\n\n")
  : record.documents ? record.documents.map((entry) => entry.tokens.map((token) => token[1]).join("")).join("\n\n")
    : record.sides ? record.sides.map((side) => (side.pieces || side.tokens || []).map((piece) => piece[side.pieces ? 0 : 1]).join("")).join("\n\n") : JSON.stringify(record.columns, null, 1));
const drawPanelBar = (record) => make("div", { class: "bar", id: "panel-bar" },
  record ? make("button", { type: "button", id: "copy", onclick: (event) => copy(event, textOf(record)) }, "copy text") : null,
  make("button", { type: "button", id: "copy-address", onclick: (event) => copy(event, location.href) }, "copy address"),
  record?.documents?.some((entry) => entry.num_trained < entry.num_tokens) ? make("button", { type: "button", id: "tokens", "aria-pressed": String(place.get("tokens") === "template"), onclick: () => go({ tokens: place.get("tokens") === "template" ? null : "template" }) }, "template") : null,
  make("span", { class: "space" }),
  make("button", { type: "button", id: "close", "aria-label": "close the row", onclick: close }, "×"));
const mark = () => {
  for (const line of list.querySelectorAll("[data-row]")) {
    const is = line.dataset.row === place.get("row") && (line.dataset.part === (place.get("part") || "0"));
    line.classList.toggle("current", is);
    if (is) line.querySelector("a.line")?.setAttribute("aria-current", "true"); else line.querySelector("a.line")?.removeAttribute("aria-current");
  }
};
const choose = (row, part) => { history.pushState(null, "", address({ row, part: part || null })); update(); };
const close = () => { const line = list.querySelector(".current a.line"); go({ row: null, part: null }); line?.focus(); };
// From line to line: the focus moves, and the panel follows where there is room for it.
const step = (distance) => {
  const all = lines(), now = all.indexOf(document.activeElement.closest?.("a.line")), shown = all.findIndex((line) => line.closest(".current"));
  const next = all[(now >= 0 ? now : shown) + distance] || (now < 0 && shown < 0 ? all[0] : null);
  if (!next) { turnPage(distance); return; }
  next.focus();
  const { row, part } = next.closest("[data-row]").dataset;
  if (!panel.hidden || innerWidth >= 900) { history.replaceState(null, "", address({ row, part: part === "0" ? null : part })); update(); }
};
const turnPage = (distance) => {
  if (!page) return;
  const at = page.position + distance * pageRows();
  if (at >= 0 && at < page.total) go({ at, row: null, part: null, query: null });
};
const lastPage = () => { if (page?.total) go({ at: Math.floor((page.total - 1) / pageRows()) * pageRows(), row: null, query: null }); };

let listed = null;
const update = async () => {
  const asked = location.hash;
  const before = collections.size && controls.firstChild ? current() : null;
  place = new URLSearchParams(location.hash.slice(1));
  const wanted = findName(place.get("show"));
  if (wanted) place.set("show", wanted);
  const key = [...place].filter(([name]) => !["row", "part", "tokens"].includes(name)).join("&");
  const isSame = listed === key && (!place.has("row") || place.has("at") || place.has("query") || place.has("mixture") || list.querySelector(`[data-row="${CSS.escape(place.get("row"))}"]`) || page?.total <= pageRows());
  requests.abort();
  requests = new AbortController();
  if (before !== current()) drawControls();
  for (const id of ["query", "step", "kind", "batch", "world"]) { const input = document.getElementById(id); if (input && input !== document.activeElement) input.value = place.get(id) || { kind: "text", batch: "8", world: "1" }[id] || ""; }
  try {
    if (place.has("show") && !wanted) throw new Error(`nothing here is called "${place.get("show")}": choose under "show"`);
    if (place.has("document")) {
      const { row } = await fetchJson(`document?${new URLSearchParams({ name: current().name, place: place.get("document") })}`);
      if (location.hash === asked) location.replace(address({ row, document: null, at: null, ...Object.fromEntries(KEPT.map((name) => [name, null])) }));  // a filter could hide it
      return;
    }
    const panelShown = showPanel().catch((error) => { if (error.name !== "AbortError") fail(error); });
    if (!isSame) {
      listed = null;
      list.setAttribute("aria-busy", "true");
      if (place.has("query")) await search();
      else if (place.has("mixture")) await showMixture();
      else await showRows();
      listed = key;
      mark();
    }
    if (returnFocus) { returnFocus = false; (list.querySelector(".current a.line") || lines()[0] || document.activeElement).focus(); }
    list.querySelector(".current")?.scrollIntoView({ block: "nearest" });
    await panelShown;
  } catch (error) { if (error.name !== "AbortError") { listed = null; fail(error); } } finally { list.removeAttribute("aria-busy"); }
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input:not([type=checkbox]), select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const focus = (id) => () => document.getElementById(id)?.focus();
  const order = () => { document.getElementById("order").open = true; document.getElementById("step").focus(); };
  const inList = !event.target.closest("#panel, pre, .chart-bars, summary");
  const action = { "/": focus("query"), g: focus("row"), s: current().has_steps ? order : null, w: focus("where"), f: () => document.querySelector("#filters select")?.focus(),
    j: () => step(1), k: () => step(-1), ArrowDown: inList ? () => step(1) : null, ArrowUp: inList ? () => step(-1) : null, Escape: panel.hidden ? null : close,
    n: () => turnPage(1), p: () => turnPage(-1), ArrowRight: inList ? () => turnPage(1) : null, ArrowLeft: inList ? () => turnPage(-1) : null, G: lastPage }[event.key];
  if (action) { event.preventDefault(); action(); }
});
fetchJson("info").then((answer) => {
  command = answer.command;
  for (const collection of answer.collections) collections.set(collection.name, collection);
  addEventListener("hashchange", update);
  addEventListener("popstate", update);
  update();
}).catch(fail);
