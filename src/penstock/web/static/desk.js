// Pages follow what happens: the server names what changed, the regions that follow it are fetched and put in their place.
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
  let show_all = false;
  const held = (old, fresh) => {
    let count = 0;
    const lists = old.querySelectorAll("table[data-list]");
    fresh.querySelectorAll("table[data-list]").forEach((table, place) => {
      if (!lists[place] || show_all) return;
      const known = new Set([...lists[place].tBodies[0].rows].map(key));
      const found = [...table.tBodies[0].rows].filter((row) => !known.has(key(row))).length;
      if (found) { count += found; table.replaceWith(lists[place].cloneNode(true)); }
    });
    return count;
  };
  const tell = (count) => {
    let notice = document.querySelector(".fresh");
    if (!count) { if (notice) notice.remove(); return; }
    if (!notice) {
      notice = document.createElement("button");
      notice.className = "button fresh";
      notice.setAttribute("role", "status");
      notice.addEventListener("click", () => { show_all = true; follow("*"); });
      document.querySelector("main").insertBefore(notice, document.querySelector("main > .column"));
    }
    notice.textContent = `${count} new`;
  };

  // What changed while nobody could be told of it waits here.
  const changed = new Set();
  let under_way = false, not_before = 0, mark = body.dataset.mark;
  const touched = ({ dataset: { follows } }) =>
    changed.has("*") || follows === "*" || follows.split(" ").some((name) => changed.has(name));
  const follow = async (names) => {
    names.split(" ").forEach((name) => changed.add(name));
    if (document.hidden || under_way || !changed.size || Date.now() < not_before) return;
    const regions = new Map([...document.querySelectorAll("[data-region]")].filter(touched).map((one) => [one.dataset.region, one]));
    const asked = [...changed];
    changed.clear();
    const address = new URL(location.href);
    address.searchParams.set("regions", [...regions.keys()].join());
    address.searchParams.set("told", mark);  // no answer that is older serves
    under_way = true;
    let pause = 1000;
    try {
      const text = await fetch(address, { headers: { Accept: "text/html" } })
        .then((answer) => answer.status >= 429 ? null : answer.ok ? answer.text() : "").catch(() => null);
      if (text === null) {  // the server is busy, or away: what changed is still to be shown
        asked.forEach((name) => changed.add(name));
        pause = 5000;
        not_before = Date.now() + pause - 100;
      } else if (text) {
        const page = new DOMParser().parseFromString(text, "text/html");
        let count = 0, lists = 0;
        for (const fresh of page.querySelectorAll("[data-region]")) {
          const old = regions.get(fresh.dataset.region);
          lists += fresh.querySelectorAll("table[data-list]").length;
          count += held(old, fresh);
          morph(old, fresh);
        }
        if (lists) { tell(count); show_all = false; }
      }
    } finally { under_way = false; }
    if (changed.size) setTimeout(follow, pause, [...changed].join(" "));
  };

  if (label && !body.hasAttribute("data-past") && !document.querySelector("form[method=post].fields")) {
    const source = new EventSource(`${body.dataset.live}?since=${mark}`);
    source.addEventListener("changed", (event) => { mark = event.lastEventId || mark; follow(event.data); });
    source.onerror = () => { label.lastChild.textContent = "offline"; };
    source.onopen = () => { label.lastChild.textContent = "live"; };
    document.addEventListener("visibilitychange", () => { if (!document.hidden && changed.size) follow([...changed].join(" ")); });
  }

  // The slider leads there when it is let go.
  document.documentElement.classList.add("scripted");
  document.addEventListener("change", (event) => { if (event.target.matches(".slide input")) event.target.form.submit(); });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, textarea, select")) return;
    event.preventDefault();
    document.querySelector(".search input")?.focus();
  });
})();
