// Tabs: one panel at a time, arrow keys move. Without this script all panels are shown.
for (const list of document.querySelectorAll("[role=tablist]")) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  list.hidden = false;
  list.parentElement.classList.add("tabbed");
  const select = (tab) => {
    for (const other of tabs) {
      const isSelected = other === tab;
      other.setAttribute("aria-selected", isSelected);
      other.tabIndex = isSelected ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !isSelected;
    }
  };
  tabs.forEach((tab, number) => {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(number + step + tabs.length) % tabs.length];
      select(next);
      next.focus();
    });
  });
  if (tabs.length) select(tabs[0]);
}

// A button that copies a command says so, and shows the command where the clipboard is closed.
for (const button of document.querySelectorAll("button[data-copy]")) {
  const words = button.textContent;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = words; }, 2000);
    } catch {
      const shown = document.createElement("code");
      shown.textContent = button.dataset.copy;
      shown.tabIndex = 0;
      button.replaceWith(shown);
      getSelection().selectAllChildren(shown);
    }
  });
}

// Thresholds: one rule from its exact counts, all rules of a step from the sample.
for (const step of document.querySelectorAll(".thresholds")) {
  const inputs = [...step.querySelectorAll("input")];
  const bytes = Uint8Array.from(atob(step.dataset.sample), (letter) => letter.charCodeAt(0));
  const all = Number(step.dataset.documents), count = Number(step.dataset.count);
  const together = step.querySelector(".together");
  together.parentElement.hidden = false;
  const changes = step.querySelector(".changes");
  const show = (share) => share > 0 && share < 0.0005 ? "<0.1%" : share < 1 && share >= 0.9995 ? ">99.9%" : (100 * share).toFixed(1) + "%";
  // Behind each slider the documents between two thresholds; where few bars have nearly all, on a logarithmic scale.
  for (const input of inputs) {
    const { documents } = JSON.parse(input.dataset.numbers), last = documents.length - 1;
    const bars = documents.slice(1).map((count, index) => Math.abs(count - documents[index]));
    if (input.dataset.rule.startsWith("min_")) bars[bars.length - 1] += documents[last]; else bars[0] += documents[0];
    const highest = Math.max(...bars, 1), isSkewed = highest > 5 * bars.reduce((sum, bar) => sum + bar, 0) / bars.length;
    const height = (bar) => bar && (isSkewed ? Math.max(0.06, Math.log1p(bar) / Math.log1p(highest)) : Math.max(0.03, bar / highest));
    const points = bars.flatMap((bar, index) => [index, index + 1].map((x) => `${(100 * x / last).toFixed(1)}% ${(100 - 100 * height(bar)).toFixed(0)}%`));
    input.previousElementSibling.style.clipPath = `polygon(0 100%,${points.join(",")},100% 100%)`;
    input.previousElementSibling.title = `documents by score${isSkewed ? ", heights on a logarithmic scale" : ""}`;
    input.parentElement.classList.add(input.dataset.rule.startsWith("min_") ? "min" : "max");
  }
  const update = () => {
    const needed = inputs.map((input) => {
      const numbers = JSON.parse(input.dataset.numbers), position = Number(input.value);
      const documents = numbers.documents[position];
      const isMoved = input.value !== input.dataset.position;
      const text = `${numbers.thresholds[position]} keeps ${documents.toLocaleString("en-US")} (${show(documents / all)})`
        + (isMoved ? `, was ${numbers.thresholds[input.dataset.position]}` : "");
      input.parentElement.querySelector("output").textContent = text;
      input.setAttribute("aria-valuetext", text);
      input.parentElement.style.setProperty("--at", `${100 * position / (numbers.thresholds.length - 1)}%`);
      // A document passes if it passes this threshold and all that are weaker.
      return input.dataset.rule.startsWith("min_") ? position + 1 : numbers.thresholds.length - position;
    });
    let passing = 0;
    for (let row = 0; row < count; row++) {
      let passes = true;
      for (let rule = 0; rule < needed.length && passes; rule++) passes = bytes[row * needed.length + rule] >= needed[rule];
      if (passes) passing++;
    }
    const share = passing / count;
    const error = count < all ? 1.96 * Math.sqrt(Math.max(share * (1 - share), 1 / count) / count) : 0;
    const source = count < all ? `, ± ${show(error)}, from a sample of ${count.toLocaleString("en-US")}` : ", exact";
    together.textContent = `${show(share)} of ${all.toLocaleString("en-US")} ${all === 1 ? "document" : "documents"}${source}`;
    together.dataset.passing = passing;
    const moved = inputs.filter((input) => input.value !== input.dataset.position);
    changes.hidden = !moved.length;
    const keys = moved.map((input) => `${input.dataset.rule}: ${JSON.parse(input.dataset.numbers).thresholds[input.value]}`);
    const own = step.dataset.language ? `by_language: {${step.dataset.language}: {${keys.join(", ")}}}` : keys.join(", ");
    changes.querySelector("code").textContent = `${step.dataset.step}: {${own}}`;
  };
  for (const input of inputs) input.addEventListener("input", update);
  changes.querySelector("button").addEventListener("click", () => {
    for (const input of inputs) input.value = input.dataset.position;
    inputs[0].focus();
    update();
  });
  update();
}

// A step with thresholds by language shows those of one language at a time.
for (const select of document.querySelectorAll(".language select")) {
  const show = () => { for (const block of select.closest(".step").querySelectorAll(".thresholds")) block.hidden = block.dataset.block !== select.value; };
  select.parentElement.hidden = false;
  select.addEventListener("change", show);
  show();
}

// A printed page cannot be unfolded.
addEventListener("beforeprint", () => { for (const fold of document.querySelectorAll("details")) fold.open = true; });
