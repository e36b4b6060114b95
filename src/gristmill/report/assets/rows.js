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
// In names, characters that would turn the direction of what follows, or not be seen, are shown as their code.
const plain = (text) => String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
const drawTable = (entries) => make("div", { class: "scroll" }, make("table", {}, make("tbody", {},
  ...entries.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, plain(name)), make("td", {}, String(value)))))));
const drawFolded = (title, entries, open) => (entries.length
  ? make("details", { open }, make("summary", {}, title), drawTable(entries)) : null);
const drawScores = (scores) => drawFolded("Scores", Object.entries(scores || {}).map(([name, value]) => [name, Number(value.toPrecision(6))]), false);
const drawTokens = (tokens, origin, shape) => make("pre", { tabindex: "0", class: shape }, ...tokens.map(([id, text, trained, bytes, differs], number) => make("span", {
  class: `token t${number % 2}${trained ? "" : " untrained"}${differs ? " differs" : ""}`,
  title: `id ${id}${bytes ? ` · bytes ${bytes}` : ""}${trained ? "" : " · not trained"}${origin ? ` · ${origin}` : ""}` }, text)));
// The turns of a rendered chat, found at its special tokens. What has none, or no masks, stays as it is.
const MARK = /^\s*(<[|｜]?[\w▁|｜-]+[|｜]?>|\[\/?[A-Z_]+\])\s*$/, ROLE = /^\s*(system|user|assistant|model|tool|developer|ipython|human|gpt)\b\s*$/i;
const findTurns = (entry) => {
  if (entry.num_trained === undefined || entry.num_trained === entry.num_tokens) return [];
  const turns = [];
  let tokens = [], role = null, isHead = true;
  const close = () => {
    if (tokens.some(([, text]) => text.trim())) turns.push({ role: role || (tokens.some((token) => token[2]) ? "assistant" : "prompt"), tokens });
    tokens = []; role = null; isHead = true;
  };
  const name = () => { role = tokens.map(([, text]) => text).join("").trim().toLowerCase(); tokens = []; isHead = false; };
  for (const token of entry.tokens) {
    const head = isHead ? tokens.map(([, text]) => text).join("") : "";
    if (MARK.test(token[1])) { if (ROLE.test(head)) name(); else close(); continue; }  // a role may stand between two marks
    tokens.push(token);
    if (isHead && /\n\s*$/.test(token[1])) { if (ROLE.test(head + token[1])) name(); else isHead = false; }
    else if (head.length > 20) isHead = false;
  }
  close();
  return turns.length > 1 || turns.some((turn) => turn.role !== "prompt") ? turns : [];
};
const drawDocument = (entry, link, template) => make("div", { class: "document" },
  make("p", { class: "note" }, link ? make("a", { href: link(entry.origin) }, plain(entry.origin)) : plain(entry.origin), ` · ${count(entry.num_tokens)} tokens`
    + (entry.num_trained === undefined ? "" : `, ${count(entry.num_trained)} trained`) + (entry.tokens.length < entry.num_tokens ? `, of which ${count(entry.tokens.length)} are shown` : "")),
  ...(template ? [] : findTurns(entry)).map((turn) => make("div", { class: `turn ${turn.role === "user" ? "user" : "other"}` }, make("b", {}, turn.role), drawTokens(turn.tokens, entry.origin, "trained"))),
  template || !findTurns(entry).length ? drawTokens(entry.tokens, entry.origin) : null, drawScores(entry.scores));
// Line breaks that differ would be invisible.
const showSpaces = (text) => text.replaceAll("\r", "␍").replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t");
const drawSide = (side, link) => make("div", { class: "side" },
  make("p", { class: "note" }, `${plain(side.title)} `, Number.isInteger(side.row) ? make(link ? "a" : "span", { href: link && link(side) }, `row ${count(side.row)}`) : side.row === null ? "does not have it" : ""),
  side.row === null ? null : side.tokens ? drawTokens(side.tokens, "")
    : make("pre", { tabindex: "0" }, ...side.pieces.map(([text, differs]) => differs === 2 ? make("mark", {}, text) : make("span", { class: differs ? "differs" : null }, differs ? showSpaces(text) : text))));
// `links` has functions that make addresses of rows, documents and pictures; a saved page has none.
const drawRow = (row, links = {}) => make("article", { class: "sample", id: `row-${row.number}` },
  make("header", {},
    make("b", {}, `row ${count(row.number)}`),
    row.step ? make("span", {}, `row ${count(row.step.stream_row)} of the stream, rank ${count(row.step.rank)}, epoch ${count(row.step.epoch)}, ${row.step.source}`) : null,
    row.reason ? make("b", { class: "bad" }, plain(row.reason)) : null, row.why ? make("span", { class: "why" }, plain(row.why)) : null,
    row.origin ? (links.document && !row.sides && !row.reason ? make("a", { href: links.document(row.origin) }, plain(row.origin)) : make("span", {}, plain(row.origin))) : null),
  row.bad ? make("p", { class: "bad" }, row.bad) : null,
  row.sides ? make("div", { class: "sides" }, ...row.sides.map((side) => drawSide(side, links.side))) : null,
  ...(row.documents || []).map((entry) => drawDocument(entry, links.document, links.template)),
  ...(row.turns || []).map((turn) => make("div", { class: `turn ${turn.role === "user" ? "user" : "other"}` },
    make("b", {}, plain(turn.role)), make("pre", { tabindex: "0" }, turn.text))),
  ...(row.pictures || []).map((picture, index) => make("figure", { class: "picture" },
    picture.data || links.picture ? make("img", { src: picture.data || links.picture(row.number, index), alt: `${picture.column}: a picture`, loading: "lazy" }) : null,
    make("figcaption", {}, `${plain(picture.column)}, ${count(picture.bytes)} bytes`))),
  row.text !== undefined ? make("pre", { tabindex: "0" }, row.text) : null,
  drawScores(row.scores),
  drawFolded("Columns", Object.entries(row.columns || {}), row.text === undefined && !row.turns && !row.sides));
