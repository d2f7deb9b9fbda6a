"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const say = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", "Switch to " + (isDark() ? "light" : "dark") + " colours"); };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; say(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
  say();
  button.hidden = false;

  const element = (parent, tag, name) => { const made = document.createElement(tag); made.className = name; parent.appendChild(made); return made; };

  for (const area of document.querySelectorAll(".area")) {
    const svg = area.querySelector("svg");
    const xTitle = area.closest("figure").querySelector(".x-title").textContent;
    let curves = null;
    // Places are read from the paths when they are first needed.
    const read = () => [...svg.querySelectorAll("path[data-x]")].map((path) => ({
      name: path.dataset.name,
      colour: "var(--c" + path.dataset.colour + ")",
      places: path.getAttribute("d").slice(1).split("L").map((place) => place.split(" ").map(Number)),
      xs: path.dataset.x.split(" "),
      ys: path.dataset.y.split(" "),
    }));
    const nearest = (places, x) => {
      let low = 0, high = places.length - 1;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (places[middle][0] < x) low = middle; else high = middle;
      }
      return x - places[low][0] < places[high][0] - x ? low : high;
    };
    let shown = [];
    const clear = () => { shown.forEach((made) => made.remove()); shown = []; };
    const show = (event) => {
      curves = curves || read();
      if (!curves.length) return;
      clear();
      const box = svg.getBoundingClientRect();
      const x = 1000 * (event.clientX - box.left) / box.width;
      const found = curves.map((curve) => ({ curve, at: nearest(curve.places, x) }));
      const distance = ({ curve, at }) => Math.abs(curve.places[at][0] - x);
      const first = found.reduce((a, b) => distance(b) < distance(a) ? b : a);
      const at = first.curve.places[first.at][0];
      const cross = element(area, "div", "cross");
      cross.style.left = at / 10 + "%";
      cross.style.height = box.height + "px";
      const tip = element(area, "div", "tip");
      element(tip, "b", "").textContent = xTitle + " " + first.curve.xs[first.at];
      shown.push(cross, tip);
      for (const { curve, at: n } of found) {
        // Runs end at different steps, and are evaluated at different ones.
        if (Math.abs(curve.places[n][0] - at) > 30) continue;
        const knob = element(area, "div", "knob");
        knob.style.left = curve.places[n][0] / 10 + "%";
        knob.style.top = curve.places[n][1] / 1000 * box.height + "px";
        knob.style.background = curve.colour;
        const row = element(tip, "span", "");
        element(row, "i", "").style.background = curve.colour;
        element(row, "strong", "").textContent = curve.ys[n];
        element(row, "em", "").textContent = curve.name;
        shown.push(knob);
      }
      const width = tip.offsetWidth;
      const left = at / 1000 * box.width;
      tip.style.left = Math.max(0, left + 14 + width > box.width ? left - width - 14 : left + 14) + "px";
    };
    area.addEventListener("pointermove", show);
    area.addEventListener("pointerdown", show);
    area.addEventListener("pointerleave", clear);
  }
})();
