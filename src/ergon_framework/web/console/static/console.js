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

// On a phone the links stand in a row, in which that of this page may be out of sight.
const here = document.querySelector(".side [aria-current]");
const row = here && here.parentElement;
if (row && row.scrollWidth > row.clientWidth) {
  row.scrollLeft = here.offsetLeft - (row.clientWidth - here.offsetWidth) / 2;
}

// An open page follows what happens: the server says that there is something new, and the page is
// loaded again. It is left alone while somebody types, has opened something or selects text.
const address = document.body.dataset.events;
const live = document.getElementById("live");
let isLoading = false;
let isStale = false;

function tell(state, text) {
  live.dataset.state = state;
  live.textContent = text;
  live.hidden = false;
}

function isUsed() {
  const main = document.getElementById("main");
  const hasFocus = main !== document.activeElement && main.contains(document.activeElement);
  const selected = document.getSelection();
  const hasSelection = selected !== null && !selected.isCollapsed;
  return document.hidden || hasFocus || hasSelection || main.querySelector("details[open]") !== null;
}

async function follow() {
  if (isLoading || isUsed()) {
    isStale = true;
    return;
  }
  isLoading = true;
  isStale = false;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.ok) tell("live", "live"); else tell("away", "not up to date");
    if (answer.ok) {
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!isUsed()) {
        for (const name of ["#main", ".side"]) {
          document.querySelector(name).replaceChildren(...found.querySelector(name).childNodes);
        }
      }
    }
  } catch { /* the stream says that the server is away */ }
  isLoading = false;
}

// A browser connects again by itself when a connection is cut, and gives up when it is refused.
const AGAIN = 15000;
let isFirst = true;

function listen() {
  const stream = new EventSource(address);
  const close = () => stream.close();
  stream.addEventListener("changed", () => {
    if (!isFirst) follow();
    isFirst = false;
  });
  stream.addEventListener("open", () => tell("live", "live"));
  stream.addEventListener("error", () => {
    tell("away", "not connected");
    if (stream.readyState !== EventSource.CLOSED) return;
    removeEventListener("pagehide", close);
    setTimeout(listen, AGAIN);
  });
  addEventListener("pagehide", close);
}

if (address) {
  listen();
  setInterval(() => { if (isStale) follow(); }, 2000);
}
