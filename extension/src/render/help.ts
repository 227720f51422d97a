/** Keys, and the list of them that ? shows. */

import { make } from "./dom";

export const KEYS: [string, string][] = [
  ["↑ ↓ ← →", "next box in that direction"],
  ["Shift + ↑ ↓", "along the data: to a producer or a consumer"],
  ["Enter", "open or close the module"],
  ["Space", "keep the box selected while you select others"],
  ["/", "search; Enter and Shift+Enter go through the results"],
  ["F · L", "next failed · next leaf module"],
  ["O · A", "open one more level · open all below the selection"],
  ["X", "close all modules"],
  ["1 … 5", "open that many levels"],
  ["R", "unfold repeated blocks, or fold them"],
  [".", "show only the selected module"],
  ["N", "show only the neighbourhood of the selection"],
  ["H", "highlight all that the selection depends on and feeds"],
  ["B", "back to the whole model"],
  ["U · Ctrl+Z", "undo a change of the view"],
  ["V", "next overlay"],
  ["G", "module graph or ATen graph"],
  ["C", "copy the name"],
  ["S", "open the line of code"],
  ["+ − 0", "zoom in, zoom out, fit"],
  ["M", "show or hide the small map"],
  ["Esc", "clear the selection and the search"],
];

export function helpPanel(close: () => void): HTMLElement {
  const list = make("dl");
  for (const [keys, what] of KEYS) list.append(make("dt", {}, make("kbd", {}, keys)), make("dd", {}, what));
  const closing = make("button", { click: close, "aria-label": "close help" }, "Close");
  const panel = make(
    "div",
    { class: "pbd-help", role: "dialog", "aria-label": "Keys" },
    make("div", { class: "pbd-title" }, make("h4", {}, "Keys"), closing),
    list,
  );
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape" || event.key === "?") {
      event.stopPropagation();
      close();
    }
  });
  queueMicrotask(() => closing.focus());
  return panel;
}
