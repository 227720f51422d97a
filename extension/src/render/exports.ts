/** A picture as a file of its own: SVG and PNG with the colours of now and the legend. */

import { download } from "./dom";
import type { Picture } from "./picture";

const SVG = "http://www.w3.org/2000/svg";
const LEGEND = 18; // of one line
const LIVE = ["id", "role", "aria-label", "aria-selected", "aria-expanded", "aria-level"];

/** SVG text that needs nothing else: colours written out, the lines of the legend below. */
export function svgText(picture: Picture, host: HTMLElement, legend: readonly string[]): string {
  const copy = picture.svg.cloneNode(true) as SVGSVGElement;
  for (const ring of copy.querySelectorAll(".pbd-ring, .pbd-handle")) ring.remove();
  for (const element of copy.querySelectorAll(LIVE.map((name) => `[${name}]`).join()))
    for (const name of LIVE) element.removeAttribute(name);
  const [width, height] = [picture.width, picture.height + room(legend)];
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  const [x = 0, y = 0, w = 0, h = 0] = (picture.svg.getAttribute("viewBox") ?? "").split(/[ ,]+/).map(Number);
  const grown = h * (height / picture.height);
  copy.setAttribute("viewBox", `${x} ${y} ${w} ${grown}`);
  const rules = document.createElementNS(SVG, "style");
  rules.textContent = `.pb-diagram{${variables(copy, host)}}`;
  const page = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries({ x, y, width: w, height: grown, style: "fill:var(--pb-page)" }))
    page.setAttribute(name, String(value));
  const words = legend.map((line, i) => {
    const text = document.createElementNS(SVG, "text");
    const look = { x: x + 8, y: y + h + 12 + 13 * i, "font-size": 10, "font-family": "Helvetica,Arial,sans-serif" };
    for (const [name, value] of Object.entries(look)) text.setAttribute(name, String(value));
    text.textContent = line;
    return text;
  });
  copy.prepend(rules, page);
  copy.append(...words);
  return new XMLSerializer().serializeToString(copy);
}

function room(legend: readonly string[]): number {
  return LEGEND * legend.length + 8;
}

export function saveSvg(picture: Picture, host: HTMLElement, legend: readonly string[], name: string): void {
  download(`${name}.svg`, new Blob([svgText(picture, host, legend)], { type: "image/svg+xml" }));
}

export async function savePng(
  picture: Picture,
  host: HTMLElement,
  legend: readonly string[],
  name: string,
): Promise<void> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(picture, host, legend))}`;
  await image.decode();
  const scale = Math.min(2, 12_000 / Math.max(picture.width, picture.height)); // canvases have a largest size
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(picture.width * scale);
  canvas.height = Math.ceil((picture.height + room(legend)) * scale);
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("This browser cannot draw the PNG; save the SVG instead.");
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  const data = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!data) throw new Error("The PNG would be too large for this browser; save the SVG instead.");
  download(`${name}.png`, data);
}

/** The variables that the picture's rules use, as the colours that they are now. */
function variables(picture: SVGSVGElement, host: HTMLElement): string {
  const names = new Set(
    [...(picture.querySelector("style")?.textContent ?? "").matchAll(/var\((--pb-[\w-]+)\)/g)]
      .map((match) => match[1]!)
      .concat("--pb-page"),
  );
  const probe = document.createElement("span");
  host.append(probe);
  const found = [...names].map((name) => {
    probe.style.color = `var(${name})`;
    return `${name}:${getComputedStyle(probe).color}`;
  });
  probe.remove();
  return found.join(";");
}
