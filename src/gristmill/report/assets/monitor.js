// A run, asked for every second. Everything from the server becomes text nodes, never markup.
const make = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
};
const find = (id) => document.getElementById(id);
const count = (number) => Math.round(number).toLocaleString("en-US");
const size = (bytes) => {
  let unit = 0;
  while (bytes >= 999.95 && unit < 5) { bytes /= 1000; unit++; }
  return unit ? `${bytes.toFixed(1)} ${["", "kB", "MB", "GB", "TB", "PB"][unit]}` : `${bytes} bytes`;
};
const time = (seconds) => {
  const total = Math.round(seconds);
  if (total < 60) return `${total} s`;
  if (total < 3600) return `${Math.floor(total / 60)} min ${total % 60} s`;
  return `${Math.floor(total / 3600)} h ${Math.floor((total % 3600) / 60)} min`;
};
const table = (heads, rows) => make("div", { class: "scroll", tabindex: "0" }, make("table", {},
  make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
  make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", { class: /^[\d-]/.test(cell) ? "number" : "text" }, cell)))))));
const svg = (tag, attributes) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};

const rates = [];
const drawRate = (status) => {
  rates.push(status.bytes_per_second);
  if (rates.length > 300) rates.shift();
  const top = Math.max(...rates, 1);
  const points = rates.map((rate, number) => `${(number / Math.max(rates.length - 1, 1)) * 1000},${(1 - rate / top) * 100}`).join(" ");
  const picture = svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", width: "100%", height: "90", role: "img", "aria-label": "Bytes a second" });
  picture.append(svg("polyline", { class: "line l0", points }));
  find("rate").replaceChildren(make("figcaption", {}, make("span", { class: "title" }, "Input read"),
    make("span", { class: "unit" }, `bytes a second, up to ${size(top)}/s, since this page was opened`)), picture);
};

const show = ({ status, fraction }) => {
  find("run").textContent = `run ${status.run} on ${status.host}, process ${status.pid}, ${status.backend}, ${time(status.run_seconds)}`;
  const total = status.total === null ? "" : ` of ${count(status.total)}`;
  const left = status.seconds_left === null || status.is_over ? "" : `, ${time(status.seconds_left)} left`;
  find("job").textContent = status.is_over ? `the run has ended; its last job was ${status.job}`
    : `${status.job}: ${fraction === null ? "" : `${Math.round(fraction * 100)} %, `}${count(status.done)}${total} tasks done${left}`;
  const progress = find("progress");
  if (fraction === null) progress.removeAttribute("value"); else progress.value = fraction;
  const why = find("why");
  why.textContent = status.is_over ? "" : `why this speed: ${status.bottleneck.text}`;
  why.dataset.cause = status.bottleneck.cause;
  const cards = [
    ["records", count(status.counts.records || 0), `${count(status.records_per_second)} a second`],
    ["input", size(status.counts.bytes || 0), status.num_bytes ? `of ${size(status.num_bytes)}, ${size(Math.round(status.bytes_per_second))}/s` : ""],
    ["workers", `${count(status.num_busy)} of ${count(status.num_workers)}`, "busy"],
    ["free memory", size(status.memory_available), `of ${size(status.memory_limit)}`],
    ["failed tasks", count(status.failed), `${count(status.deaths)} workers died`],
  ];
  find("cards").replaceChildren(...cards.map(([name, value, note]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, note)))));
  drawRate(status);
  const workers = status.workers.map((worker) => [worker.name, worker.state, worker.cpu_share === null ? "-" : `${Math.round(worker.cpu_share * 100)} %`,
    worker.memory_bytes ? size(worker.memory_bytes) : "-", worker.state === "busy" ? time(worker.seconds) : "", worker.task, worker.node.slice(0, 8)]);
  const heads = ["worker", "state", "CPU", "memory", "for", "task", "node"];
  const shown = status.workers.some((worker) => worker.node) ? heads.length : heads.length - 1;
  find("workers").replaceChildren(table(heads.slice(0, shown), workers.map((cells) => cells.slice(0, shown))));
  find("ended").replaceChildren(table(["job", "time", "tasks", "records"],
    status.ended.map((job) => [job.name, time(job.seconds), count(job.tasks), count(job.counts.records || 0)])));
  find("ended-section").hidden = !status.ended.length;
};

let isOver = false;
const ask = async () => {
  try {
    const answer = await (await fetch("status")).json();
    if (answer.status) { show(answer); isOver = answer.status.is_over; }
  } catch (error) {
    if (!isOver) find("job").textContent = "the run does not answer: it has ended, or its machine is gone";
    isOver = true;
  }
  if (!isOver) setTimeout(ask, 1000);
};
ask();
