"use strict";
// The theme of a page: that of the system, until the button chooses the other. It stands before the script of each page.
const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
const nameTheme = () => { themeButton.textContent = isDark() ? "Light" : "Dark"; };
themeButton.hidden = false;
themeButton.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
prefersDark.addEventListener("change", nameTheme);
nameTheme();
