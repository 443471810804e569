// Everything here is a convenience: each page works without it.
"use strict";

const root = document.documentElement;
const THEMES = ["auto", "light", "dark"];

function kept() {
  try { return localStorage.getItem("ergon-theme"); } catch { return null; }
}

function setTheme(name) {
  if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
  try { localStorage.setItem("ergon-theme", name); } catch { /* a browser that keeps nothing */ }
  const button = document.getElementById("theme");
  button.textContent = `Theme: ${name}`;
  button.hidden = false;
}

let theme = THEMES.includes(kept()) ? kept() : "auto";
setTheme(theme);
document.getElementById("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  setTheme(theme);
});

document.addEventListener("keydown", (event) => {
  const isTyping = /^(input|textarea|select)$/i.test(event.target.tagName);
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.getElementById("find").focus();
  }
});
