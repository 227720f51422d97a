/** Parts of drawings made by hand. */

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag: string, attributes: Record<string, string | number>): SVGElement {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

/** What is said where the mouse rests. */
export function titled(text: string): SVGElement {
  const title = svg("title", {});
  title.textContent = text;
  return title;
}

export function label(x: number, y: number, text: string, anchor: string, kind: string): SVGElement {
  const made = svg("text", { x, y, "text-anchor": anchor, class: kind });
  made.textContent = text;
  return made;
}
