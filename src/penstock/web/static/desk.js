// Pages follow what happens: a word from the server, a fetch, and what changed is put in its place.
"use strict";
(() => {
  const body = document.body, label = document.querySelector(".live");

  // Make one element like another, keeping what a person has touched: focus, open details, typed text.
  const morph = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeName !== fresh.nodeName || old.nodeType !== 1) { old.replaceWith(fresh.cloneNode(true)); return; }
    if (old.matches("form") && old.contains(document.activeElement)) return;
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const before = [...old.childNodes], after = [...fresh.childNodes];
    after.forEach((node, place) => before[place] ? morph(before[place], node) : old.append(node.cloneNode(true)));
    before.slice(after.length).forEach((node) => node.remove());
  };

  let under_way = false, again = false;
  const refresh = async () => {
    if (document.hidden) { again = true; return; }
    if (under_way) { again = true; return; }
    under_way = true; again = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const fresh of page.querySelectorAll("[data-region]")) {
          const old = document.querySelector(`[data-region="${fresh.dataset.region}"]`);
          if (old) morph(old, fresh);
        }
      }
    } finally { under_way = false; }
    if (again) setTimeout(refresh, 1000);
  };

  if (label && !body.hasAttribute("data-past") && !document.querySelector("form[method=post].fields")) {
    const source = new EventSource(body.dataset.live);
    source.addEventListener("changed", refresh);
    source.onerror = () => { label.lastChild.textContent = "offline"; };
    source.onopen = () => { label.lastChild.textContent = "live"; };
    document.addEventListener("visibilitychange", () => { if (!document.hidden && again) refresh(); });
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, textarea, select")) return;
    event.preventDefault();
    document.querySelector(".search input").focus();
  });
})();
