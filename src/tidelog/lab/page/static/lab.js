// The lab's page: exchanges what differs in its regions, and sends forms without leaving the page.
// Regions come drawn and escaped by the server; elements with the same data-key stay the same element, so
// that buttons keep their focus and marks glide from place to place.
"use strict";

(() => {
  const lab = document.querySelector("[data-lab]");
  if (!lab) return;
  const message = document.getElementById("lab-message");
  const hadCluster = Boolean(lab.querySelector("[data-cluster='1']"));

  const keyOf = (node) => node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;

  function same(old, fresh) {
    return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
  }

  function copyAttributes(old, fresh) {
    for (const { name } of [...old.attributes]) {
      // People open and close details themselves.
      if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    if (old.nodeName === "INPUT" && old.type === "hidden") old.value = fresh.value;
  }

  function change(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    // A button that waits for its answer stays as it is until then.
    if (old.getAttribute("aria-busy") !== "true") copyAttributes(old, fresh);
    changeChildren(old, fresh);
  }

  function changeChildren(old, fresh) {
    const keyed = new Map();
    old.childNodes.forEach((node) => { if (keyOf(node) !== null) keyed.set(keyOf(node), node); });
    let place = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const key = keyOf(wanted);
      let found = key === null ? place : keyed.get(key);
      if (key === null) while (found && keyOf(found) !== null) found = found.nextSibling;
      if (found && same(found, wanted)) {
        if (found === place) place = place.nextSibling;
        else old.insertBefore(found, place);
        change(found, wanted);
      } else old.insertBefore(wanted, place);
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  const shown = new Map();
  function showRegion({ id, html, number }) {
    if (String(number) !== lab.dataset.number) { location.reload(); return; }
    const region = document.getElementById(id);
    if (!region || shown.get(id) === html) return;
    shown.set(id, html);
    const fresh = new DOMParser().parseFromString(`<div>${html}</div>`, "text/html").body.firstChild;
    changeChildren(region, fresh);
    // With a cluster the console has more pages, and so the menu more lines.
    if (id === "lab-status" && !hadCluster && region.querySelector("[data-cluster='1']")) location.reload();
  }

  const stream = new EventSource("/lab/live");
  stream.addEventListener("region", (event) => showRegion(JSON.parse(event.data)));
  addEventListener("pagehide", () => stream.close());

  function say(text) {
    message.textContent = text;
    message.hidden = !text;
  }

  lab.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("[data-lab-form]")) return;
    event.preventDefault();
    const button = event.submitter;
    const body = new URLSearchParams(new FormData(form, button));
    if (button) { button.setAttribute("aria-busy", "true"); button.disabled = true; }
    say("");
    try {
      const answer = await fetch(form.action, { method: "POST", body, headers: { "x-lab": "1" } });
      if (answer.status === 409) say(`That cannot be done: ${(await answer.json()).error}`);
      else if (!answer.ok) location.reload();
    } catch {
      say("The lab does not answer: was it stopped in the terminal?");
    } finally {
      if (button) { button.removeAttribute("aria-busy"); button.disabled = false; }
    }
  });

  addEventListener("keydown", (event) => {
    if (event.key !== "n" || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (event.target.matches("input, select, textarea")) return;
    lab.querySelector("[data-next]")?.click();
  });
})();
