// Rows as elements. Everything from the data becomes text nodes, never markup.
const make = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};
const count = (number) => number.toLocaleString("en-US");
const drawTable = (entries) => make("div", { class: "scroll" }, make("table", {}, make("tbody", {},
  ...entries.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, String(value)))))));
const drawFolded = (title, entries, open) => (entries.length
  ? make("details", { open }, make("summary", {}, title), drawTable(entries)) : null);
const drawScores = (scores) => drawFolded("Scores", Object.entries(scores || {}).map(([name, value]) => [name, Number(value.toPrecision(6))]), false);
const drawTokens = (tokens, origin) => make("pre", { tabindex: "0" }, ...tokens.map(([id, text, trained, bytes, differs], number) => make("span", {
  class: `token t${number % 2}${trained ? "" : " untrained"}${differs ? " differs" : ""}`,
  title: `id ${id}${bytes ? ` · bytes ${bytes}` : ""}${trained ? "" : " · not trained"}${origin ? ` · ${origin}` : ""}` }, text)));
const drawDocument = (entry, link) => make("div", { class: "document" },
  make("p", { class: "note" }, link ? make("a", { href: link(entry.origin) }, entry.origin) : entry.origin, ` · ${count(entry.num_tokens)} tokens`
    + (entry.num_trained === undefined ? "" : `, ${count(entry.num_trained)} trained`) + (entry.tokens.length < entry.num_tokens ? `, of which ${count(entry.tokens.length)} are shown` : "")),
  drawTokens(entry.tokens, entry.origin), drawScores(entry.scores));
// Line breaks that differ would be invisible.
const showSpaces = (text) => text.replaceAll("\r", "␍").replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t");
const drawSide = (side, link) => make("div", { class: "side" },
  make("p", { class: "note" }, `${side.title} `, Number.isInteger(side.row) ? make(link ? "a" : "span", { href: link && link(side) }, `row ${count(side.row)}`) : side.row === null ? "does not have it" : ""),
  side.row === null ? null : side.tokens ? drawTokens(side.tokens, "")
    : make("pre", { tabindex: "0" }, ...side.pieces.map(([text, differs]) => differs === 2 ? make("mark", {}, text) : make("span", { class: differs ? "differs" : null }, differs ? showSpaces(text) : text))));
// `links` has functions that make addresses of rows, documents and pictures; a saved page has none.
const drawRow = (row, links = {}) => make("article", { class: "sample", id: `row-${row.number}` },
  make("header", {},
    links.chosen ? links.chosen(row) : null,
    links.row ? make("a", { href: links.row(row.number) }, `row ${count(row.number)}`) : make("b", {}, `row ${count(row.number)}`),
    row.step ? make("span", {}, `row ${count(row.step.stream_row)} of the stream, rank ${count(row.step.rank)}, epoch ${count(row.step.epoch)}, ${row.step.source}`) : null,
    row.reason ? make("b", { class: "bad" }, row.reason) : null,
    row.origin ? (links.document && !row.sides && !row.reason ? make("a", { href: links.document(row.origin) }, row.origin) : make("span", {}, row.origin)) : null),
  row.bad ? make("p", { class: "bad" }, row.bad) : null,
  row.sides ? make("div", { class: "sides" }, ...row.sides.map((side) => drawSide(side, links.side))) : null,
  ...(row.documents || []).map((entry) => drawDocument(entry, links.document)),
  ...(row.turns || []).map((turn) => make("div", { class: `turn ${turn.role === "user" ? "user" : "other"}` },
    make("b", {}, turn.role), make("pre", { tabindex: "0" }, turn.text))),
  ...(row.pictures || []).map((picture, index) => make("figure", { class: "picture" },
    picture.data || links.picture ? make("img", { src: picture.data || links.picture(row.number, index), alt: `${picture.column}: a picture`, loading: "lazy" }) : null,
    make("figcaption", {}, `${picture.column}, ${count(picture.bytes)} bytes`))),
  row.text !== undefined ? make("pre", { tabindex: "0" }, row.text) : null,
  drawScores(row.scores),
  drawFolded("Columns", Object.entries(row.columns || {}), row.text === undefined && !row.turns && !row.sides));
