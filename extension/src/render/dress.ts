/** Names and roles for screen readers, words for the mouse, and buttons that open and close. */

import type { Part, Picture } from "./picture";

const SVG = "http://www.w3.org/2000/svg";

/** Prepares the elements of a picture; `uid` makes their ids unique in the page. */
export function dress(picture: Picture, uid: string): void {
  picture.svg.setAttribute("role", "none"); // the items belong to the tree around the picture
  let number = 0;
  for (const part of picture.parts.values()) {
    const { element } = part;
    const drawn = part.box === null ? element.querySelector(":scope > text")?.textContent : "";
    if (drawn) part.title = `${part.title}: ${drawn}`; // who speaks to the page says what is seen
    element.id = `${uid}-${number++}`;
    element.setAttribute("role", "treeitem");
    element.setAttribute("aria-label", part.title);
    const title = document.createElementNS(SVG, "title");
    title.textContent = part.title;
    for (const text of element.querySelectorAll("text")) text.before(" "); // words that are not one
    element.append(title);
    if (part.box !== null && part.box.kind !== "module" && part.box.kind !== "fold") continue;
    element.setAttribute("aria-expanded", String(part.box === null));
    element.append(handleOf(part));
  }
}

/** A small button in the corner of a module: one click opens or closes it. */
function handleOf(part: Part): SVGGElement {
  const { x, y, width } = part.rect;
  const open = part.box === null;
  const size = 11;
  const group = document.createElementNS(SVG, "g");
  group.setAttribute("class", "pbd-handle");
  const square = document.createElementNS(SVG, "rect");
  const [left, top] = [x + width - 0.6 * size, y - 0.4 * size];
  for (const [name, value] of Object.entries({ x: left, y: top, width: size, height: size, rx: 2.5 }))
    square.setAttribute(name, String(value));
  const sign = document.createElementNS(SVG, "path");
  const [middle, centre] = [left + size / 2, top + size / 2];
  sign.setAttribute("d", `M${middle - 3} ${centre}h6${open ? "" : `M${middle} ${centre - 3}v6`}`);
  group.append(square, sign);
  return group;
}
