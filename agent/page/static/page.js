"use strict";
// Keeps the page current: requests it again and changes only its differences. Selection, focus and opened parts stay.
// Without this script the page is the same, and reloads every ten seconds.

function follow(shown, wanted) {
  if (shown.nodeType !== wanted.nodeType || shown.nodeName !== wanted.nodeName) {
    shown.replaceWith(wanted.cloneNode(true));
  } else if (shown.nodeType !== Node.ELEMENT_NODE) {
    if (shown.data !== wanted.data) shown.data = wanted.data;
  } else {
    followAttributes(shown, wanted);
    const parts = [...shown.childNodes];
    wanted.childNodes.forEach((part, place) =>
      place < parts.length ? follow(parts[place], part) : shown.append(part.cloneNode(true)));
    parts.slice(wanted.childNodes.length).forEach((part) => part.remove());
  }
}

function followAttributes(shown, wanted) {
  for (const { name } of [...shown.attributes]) {
    if (name !== "open" && !wanted.hasAttribute(name)) shown.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name !== "open" && shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  }
}

async function look() {
  const lost = document.getElementById("lost");
  try {
    const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of ["header", "main"]) follow(document.querySelector(part), page.querySelector(part));
    document.title = page.title;
    lost.hidden = true;
  } catch (error) {
    if (lost.hidden) {
      lost.textContent = `No answer from the agent since ${new Date().toLocaleTimeString()} (${error.message}): what follows is old.`;
    }
    lost.hidden = false;
  }
}

async function stay() {
  for (;;) {
    await new Promise((resume) => setTimeout(resume, 2000));
    if (!document.hidden) await look();
  }
}

stay();
