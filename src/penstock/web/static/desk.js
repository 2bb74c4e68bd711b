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

  // A list does not jump below a person's eyes: rows that are new are counted, and shown when asked for.
  const key = (row) => (row.querySelector("a") || row).outerHTML;
  const held = (fresh) => {
    let count = 0;
    fresh.querySelectorAll("table[data-list]").forEach((table, place) => {
      const old = document.querySelectorAll("table[data-list]")[place];
      if (!old) return;
      const known = new Set([...old.tBodies[0].rows].map(key));
      const found = [...table.tBodies[0].rows].filter((row) => !known.has(key(row))).length;
      if (found && !again_shown) { count += found; table.replaceWith(old.cloneNode(true)); }
    });
    return count;
  };
  let again_shown = false;
  const tell = (count) => {
    let notice = document.querySelector(".fresh");
    if (!count) { if (notice) notice.remove(); return; }
    if (!notice) {
      notice = document.createElement("button");
      notice.className = "button fresh";
      notice.addEventListener("click", () => { again_shown = true; refresh(); });
      document.querySelector("main").insertBefore(notice, document.querySelector("[data-region=page]"));
      notice.setAttribute("role", "status");
    }
    notice.textContent = `${count} new`;
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
        tell(held(page));
        again_shown = false;
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

  // The slider leads there when it is let go.
  document.documentElement.classList.add("scripted");
  document.addEventListener("change", (event) => { if (event.target.matches(".slide input")) event.target.form.submit(); });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, textarea, select")) return;
    event.preventDefault();
    document.querySelector(".search input").focus();
  });
})();
