// What the pages cannot do without a script: live regions, the live tail, keys, the theme.
// Every page works without it. Texts from the cluster are only ever set as textContent.
"use strict";

const each = (selector, action) => document.querySelectorAll(selector).forEach(action);

// Theme

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}
each("[data-theme-toggle]", (button) => button.addEventListener("click", toggleTheme));

// Forms

each("[data-submit]", (field) => field.addEventListener("change", () => field.form.submit()));
each("form[data-confirm]", (form) =>
  form.addEventListener("submit", (event) => {
    if (!confirm(form.dataset.confirm)) event.preventDefault();
  }));
each("[data-read-into]", (field) =>
  field.addEventListener("change", async () => {
    if (field.files[0]) field.form.elements[field.dataset.readInto].value = await field.files[0].text();
  }));
each("[data-start]", (select) => {
  const show = () => each("[data-for]", (label) => { label.hidden = label.dataset.for !== select.value; });
  select.addEventListener("change", show);
  show();
});
each("[data-filter-rows]", (field) =>
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    each(`#${field.dataset.filterRows} tbody tr`, (row) => {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  }));
each("[data-back]", (link) =>
  link.addEventListener("click", (event) => {
    if (history.length > 1) { event.preventDefault(); history.back(); }
  }));
each("[data-menu]", (button) =>
  button.addEventListener("click", () => {
    const open = document.body.classList.toggle("menu-open");
    button.setAttribute("aria-expanded", String(open));
  }));

// Live regions: after each look of the console, the page is asked for again and the regions are exchanged.

const regions = () => document.querySelectorAll("[data-live]");
const REFRESH_MS_MIN = 1500;
let refreshing = false;
let refreshedAt = 0;

function inUse(region) {
  const active = document.activeElement;
  return (region.contains(active) && active.matches("input, select, textarea")) ||
    (getSelection().type === "Range" && region.contains(getSelection().anchorNode));
}

async function refresh() {
  if (refreshing || document.hidden || Date.now() - refreshedAt < REFRESH_MS_MIN) return;
  refreshing = true;
  try {
    const answer = await fetch(location.href, { headers: { "x-live": "1" } });
    if (answer.status === 401) { location.reload(); return; }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    regions().forEach((region) => {
      const fresh = page.getElementById(region.id);
      if (!fresh || inUse(region) || fresh.innerHTML === region.innerHTML) return;
      const focused = region.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      region.replaceChildren(...fresh.childNodes);
      if (focused) region.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    });
  } catch {
    // The console itself is away; the stream below connects again by itself.
  } finally {
    refreshing = false;
    refreshedAt = Date.now();
  }
}

if (regions().length > 0 || document.querySelector("[data-wait-for-cluster]")) {
  const stream = new EventSource("/live");
  const dot = document.getElementById("live-dot");
  stream.addEventListener("look", (event) => {
    const seen = event.data === "seen";
    if (dot) dot.className = `dot ${seen ? "good" : "bad"}`;
    if (seen && document.querySelector("[data-wait-for-cluster]")) location.reload();
    // Where only the frame is live, nothing is worth asking for again while all is well.
    else if (regions().length > 1 || !seen || document.querySelector("#stale .notice")) refresh();
  });
  stream.addEventListener("error", () => { if (dot) dot.className = "dot bad"; });
  addEventListener("pagehide", () => stream.close());
}

// Live tail

const TAIL_ROWS_MAX = 500;

function cell(row, text, className) {
  const made = row.insertCell();
  made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function shownText(made, text, format) {
  if (format === "null" || format === "empty") {
    const word = document.createElement("em");
    word.className = "muted";
    word.textContent = format;
    made.append(word);
  } else made.append(text);
}

function moment(ms) {
  if (ms === null || ms < 0) return "–";
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return String(ms);
  const two = (number, width = 2) => String(number).padStart(width, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${two(date.getMilliseconds(), 3)}`;
}

function addRecord(table, record) {
  const row = table.tBodies[0].insertRow(0);
  row.className = "fresh";
  cell(row, moment(record.timestamp_ms), "time");
  cell(row, record.partition, "num");
  const link = document.createElement("a");
  link.href = `/topics/${table.dataset.topic}/records/${record.partition}/${record.offset}`;
  link.textContent = String(record.offset).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  cell(row, undefined, "num").append(link);
  shownText(cell(row, undefined, "mono cut key"), record.key, record.key_format);
  const value = cell(row, undefined, "mono cut value");
  record.headers.slice(0, 4).forEach(([name, text]) => {
    const header = document.createElement("span");
    header.className = "header";
    header.textContent = name;
    header.title = `${name}: ${text}`;
    value.append(header);
  });
  shownText(value, record.value_cut ? `${record.value} …` : record.value, record.value_format);
}

each("[data-tail]", (button) => {
  const table = document.getElementById("records");
  const status = document.getElementById("tail-status");
  let stream = null;
  let shown = 0;
  let leftOut = 0;
  const say = () => {
    status.textContent = `Live: ${shown} arrived${leftOut ? `, ${leftOut} left out because they came too fast` : ""}.`;
  };
  const close = (text) => {
    stream.close();
    stream = null;
    button.setAttribute("aria-pressed", "false");
    button.textContent = "▶ Live tail";
    status.textContent = text;
  };
  button.addEventListener("click", () => {
    if (stream) { close(`Live tail stopped: ${shown} arrived.`); return; }
    const query = new URLSearchParams(new FormData(button.form));
    stream = new EventSource(`${button.dataset.tail}?${query}`);
    button.setAttribute("aria-pressed", "true");
    button.textContent = "■ Stop";
    status.textContent = "Live: connecting …";
    shown = leftOut = 0;
    stream.addEventListener("open", () => { if (!shown) status.textContent = "Live: waiting for records …"; });
    stream.addEventListener("records", (event) => {
      const { rows, left_out } = JSON.parse(event.data);
      document.getElementById("no-records")?.remove();
      rows.forEach((record) => addRecord(table, record));
      const body = table.tBodies[0];
      while (body.rows.length > TAIL_ROWS_MAX) body.deleteRow(-1);
      shown += rows.length;
      leftOut += left_out;
      say();
    });
    stream.addEventListener("error", () => {
      if (stream && stream.readyState === EventSource.CLOSED) {
        close("The live tail was refused: too many are open, or the filter cannot be read.");
      }
    });
  });
  addEventListener("pagehide", () => stream?.close());
});

// Keys

let going = false;
const keysDialog = document.getElementById("keys");
each("[data-keys]", (button) => button.addEventListener("click", () => keysDialog.showModal()));

function moveRow(step) {
  const links = [...document.querySelectorAll("table.rows tbody tr:not([hidden])")]
    .map((row) => row.querySelector("a")).filter(Boolean);
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + step))].focus();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (going) {
    going = false;
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); location.href = link.href; }
    return;
  }
  const actions = {
    g: () => { going = true; setTimeout(() => { going = false; }, 1500); },
    "/": () => document.querySelector("[data-search]")?.focus(),
    "?": () => keysDialog.showModal(),
    d: toggleTheme,
    j: () => moveRow(1),
    k: () => moveRow(-1),
  };
  if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
});
