document.getElementById("rows").append(...JSON.parse(document.getElementById("data").textContent).map((row) => drawRow(row)));
