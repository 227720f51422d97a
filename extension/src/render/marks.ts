/** What is selected, found, filtered and connected, shown on the elements of a picture. */

import type { Part, Picture, Rect } from "./picture";

export interface Marked {
  chosen: readonly string[];
  active: string;
  /** States that are shown while others fade; none for all. */
  filter: ReadonlySet<string>;
  hits: ReadonlySet<string>;
  /** Whether everything before and after the selection is shown, not only its neighbours. */
  traced: boolean;
}

const SVG = "http://www.w3.org/2000/svg";

/** Sets the classes of boxes and edges, and draws a ring around what is selected. */
export function marksOf(picture: Picture, marked: Marked, rect: (id: string) => Rect | undefined): void {
  const chosen = new Set(marked.chosen.filter((id) => picture.parts.has(id)));
  const before = reached(picture, chosen, "to", "from", marked.traced);
  const after = reached(picture, chosen, "from", "to", marked.traced);
  const fading = marked.traced && chosen.size > 0;
  for (const part of picture.parts.values()) {
    const { classList } = part.element;
    const near = chosen.has(part.id) || before.has(part.id) || after.has(part.id);
    classList.toggle("pbd-chosen", chosen.has(part.id));
    classList.toggle("pbd-active", part.id === marked.active);
    classList.toggle("pbd-hit", marked.hits.has(part.id));
    classList.toggle("pbd-near", near && !chosen.has(part.id));
    classList.toggle(
      "pbd-faded",
      part.box !== null && ((marked.filter.size > 0 && !passes(part, marked.filter)) || (fading && !near)),
    );
    part.element.setAttribute("aria-selected", String(chosen.has(part.id)));
  }
  for (const edge of picture.edges) {
    const into =
      (chosen.has(edge.to) || (marked.traced && before.has(edge.to))) &&
      (before.has(edge.from) || chosen.has(edge.from));
    const out =
      (chosen.has(edge.from) || (marked.traced && after.has(edge.from))) && (after.has(edge.to) || chosen.has(edge.to));
    edge.element.classList.toggle("pbd-in", into);
    edge.element.classList.toggle("pbd-out", out && !into);
    edge.element.classList.toggle("pbd-faded", fading && !into && !out);
  }
  for (const ring of picture.svg.querySelectorAll(".pbd-ring")) ring.remove();
  for (const id of chosen) {
    const at = rect(id);
    if (at) picture.parts.get(id)!.element.append(ringAround(at));
  }
}

function passes(part: Part, filter: ReadonlySet<string>): boolean {
  const box = part.box!;
  return (
    filter.has(box.status) ||
    box.inside.some(([status]) => filter.has(status)) ||
    (filter.has("reused") && box.calls !== "") ||
    filter.has(box.change)
  );
}

function reached(
  picture: Picture,
  start: ReadonlySet<string>,
  at: "from" | "to",
  next: "from" | "to",
  all: boolean,
): Set<string> {
  const found = new Set<string>();
  let front = [...start];
  while (front.length) {
    const here = new Set(front);
    front = [];
    for (const edge of picture.edges) {
      if (here.has(edge[at]) && !found.has(edge[next]) && !start.has(edge[next])) {
        found.add(edge[next]);
        front.push(edge[next]);
      }
    }
    if (!all) break;
  }
  return found;
}

function ringAround(rect: Rect): SVGRectElement {
  const ring = document.createElementNS(SVG, "rect");
  const gap = 3;
  for (const [name, value] of Object.entries({
    class: "pbd-ring",
    x: rect.x - gap,
    y: rect.y - gap,
    width: rect.width + 2 * gap,
    height: rect.height + 2 * gap,
    rx: 6,
  }))
    ring.setAttribute(name, String(value));
  return ring;
}
