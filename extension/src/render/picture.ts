/** What Graphviz drew, as elements of the page: only drawing, coloured by classes, joined to the boxes of the scene. */

import palette from "../generated/palette.json";
import type { Box } from "./boxes";
import type { Drawing } from "./engine";
import type { SvgElement } from "./svgtree";

const SVG = "http://www.w3.org/2000/svg";
const DRAWING = new Set(["g", "path", "polygon", "polyline", "ellipse", "text"]);
const GEOMETRY = new Set([
  "d",
  "points",
  "cx",
  "cy",
  "rx",
  "ry",
  "x",
  "y",
  "transform",
  "viewBox",
  "width",
  "height",
  "class",
  "text-anchor",
  "font-family",
  "font-size",
  "font-weight",
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "text-decoration",
]);
const SHAPES = ["path", "polygon", "polyline", "ellipse"];
const WORDS = palette.status as Record<string, { word: string }>;

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Part {
  id: string;
  element: SVGGElement;
  title: string;
  status: string;
  box: Box | null;
  /** Where it lies, in the picture's units. */
  rect: Rect;
}

export interface Picture {
  svg: SVGSVGElement;
  /** Size in pixels at zoom 1. */
  width: number;
  height: number;
  /** The picture in words. */
  label: string;
  /** Boxes and open modules, by id. */
  parts: Map<string, Part>;
  edges: { from: string; to: string; element: SVGGElement }[];
}

const SLICE = 12; // milliseconds of work before the page may react

/** Makes the elements of a drawing bit by bit; everything that is no drawing is left out. */
export async function makePicture(source: SvgElement, drawing: Drawing, label: string): Promise<Picture> {
  const picture: Picture = {
    svg: document.createElementNS(SVG, "svg"),
    width: 0,
    height: 0,
    label,
    parts: new Map(),
    edges: [],
  };
  const clusters = new Map(drawing.clusters.map((cluster) => [cluster.name, cluster]));
  const take = (name: string, group: SVGGElement): void => {
    const kind = group.classList[0];
    if (kind === "node") {
      const box = drawing.boxes[Number(name.slice(1))];
      if (box)
        picture.parts.set(box.id, {
          id: box.id,
          element: group,
          title: describe(box),
          status: box.status,
          box,
          rect: rectOf(group),
        });
    } else if (kind === "cluster") {
      const cluster = clusters.get(name);
      if (cluster)
        picture.parts.set(`module:${cluster.id}`, {
          id: `module:${cluster.id}`,
          element: group,
          title: `${cluster.title}, open module`,
          status: "",
          box: null,
          rect: rectOf(group),
        });
    } else if (kind === "edge") {
      const [from, to] = name.split("->").map((end) => drawing.boxes[Number(end.slice(1))]?.id ?? "");
      if (from && to) picture.edges.push({ from, to, element: group });
    }
  };
  const scale = 96 / 72;
  setAttributes(picture.svg, source);
  picture.width = parseFloat(source.attributes["width"] ?? "0") * scale;
  picture.height = parseFloat(source.attributes["height"] ?? "0") * scale;
  picture.svg.classList.add("pb-diagram");
  const style = document.createElementNS(SVG, "style");
  style.textContent = RULES;
  picture.svg.append(style);
  let last = performance.now();
  for (const top of source.children.filter((child) => child.name === "g")) {
    const group = picture.svg.appendChild(document.createElementNS(SVG, "g"));
    setAttributes(group, top);
    for (const child of drawn(top)) {
      group.append(elementOf(child, take));
      if (performance.now() - last > SLICE) {
        await pause();
        last = performance.now();
      }
    }
  }
  return picture;
}

/** Lets the page react. */
export function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve));
}

function elementOf(source: SvgElement, seen: (name: string, group: SVGGElement) => void): SVGElement {
  const made = document.createElementNS(SVG, source.name) as SVGElement;
  setAttributes(made, source);
  for (const child of drawn(source)) made.append(elementOf(child, seen));
  if (source.name === "text") made.textContent = source.text;
  if (made.classList[0] === "node") centreLines(made);
  const name = source.children.find((child) => child.name === "title")?.text;
  if (name && source.name === "g") seen(name, made as SVGGElement);
  return made;
}

/** The children that draw something; links carry only tooltips, so what is in them is taken out. */
function drawn(source: SvgElement): SvgElement[] {
  return source.children.flatMap((child) =>
    child.name === "a" || (child.name === "g" && child.attributes["id"]?.startsWith("a_"))
      ? drawn(child)
      : DRAWING.has(child.name)
        ? [child]
        : [],
  );
}

function setAttributes(element: SVGElement, source: SvgElement): void {
  for (const [name, value] of Object.entries(source.attributes))
    if (GEOMETRY.has(name)) element.setAttribute(name, value);
}

/** Lines of text start where Graphviz thought they would; fonts differ, so they are put in the middle of their box. */
function centreLines(node: SVGElement): void {
  const lines = [...node.children].filter((child) => child.nodeName === "text");
  const { x, width } = rectOf(node);
  const middle = x + width / 2;
  lines.forEach((line, i) => {
    line.setAttribute("text-anchor", "middle");
    line.setAttribute("x", String(middle));
    if (lines.length > 1) line.setAttribute("y", String(Number(line.getAttribute("y")) + (i ? 0.6 : -0.8)));
  });
}

/** What the shapes of a group cover, from their numbers: asking the browser would make it lay out the page each time. */
function rectOf(group: SVGElement): Rect {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  const take = (x: number, y: number): void => {
    [left, top, right, bottom] = [Math.min(left, x), Math.min(top, y), Math.max(right, x), Math.max(bottom, y)];
  };
  for (const shape of group.children) {
    if (shape.nodeName === "ellipse") {
      const [cx = 0, cy = 0, rx = 0, ry = 0] = ["cx", "cy", "rx", "ry"].map((name) => Number(shape.getAttribute(name)));
      take(cx - rx, cy - ry);
      take(cx + rx, cy + ry);
    } else if (shape.nodeName === "text" && left === Infinity)
      take(Number(shape.getAttribute("x")), Number(shape.getAttribute("y")));
    else
      for (const point of (shape.getAttribute("points") ?? shape.getAttribute("d") ?? "").matchAll(
        /(-?[\d.]+),(-?[\d.]+)/g,
      ))
        take(Number(point[1]), Number(point[2]));
  }
  return left === Infinity
    ? { x: 0, y: 0, width: 0, height: 0 }
    : { x: left, y: top, width: right - left, height: bottom - top };
}

function describe(box: Box): string {
  const inside = box.inside.map(([status, count]) => `${count} ${WORDS[status]?.word ?? status} inside`);
  const name =
    box.kind === "reference"
      ? `reference to ${box.title.replace(/^[◄►] /, "")}`
      : box.fqn && box.kind !== "fold"
        ? box.fqn
        : box.title;
  const words = [
    name,
    box.title === name ? "" : box.title,
    box.subtitle,
    box.detail,
    box.status === "traced" ? "" : (WORDS[box.status]?.word ?? box.status),
    ...inside,
    box.calls ? `${box.calls} calls` : "",
    box.change,
  ];
  return [...new Set(words.filter(Boolean))].join(", ");
}

function shapes(of: string): string {
  return SHAPES.map((shape) => `.pb-diagram .node${of}>${shape}`).join(",");
}

function swatches(name: string, keys: readonly (string | number)[]): string {
  return keys.map((key) => `.pbd-swatch .pb-${name}-${key}{background:var(--pb-${name}-${key})}`).join(" ");
}

function fills(name: string, keys: readonly (string | number)[]): string {
  return (
    swatches(name, keys) +
    keys
      .map(
        (key) =>
          `${shapes(`.pb-${name}-${key}`)}{fill:var(--pb-${name}-${key})} .pb-diagram .pb-${name}-${key} text{fill:var(--pb-${name}-${key}-text)!important}`,
      )
      .join("\n")
  );
}

const steps = [...Array(palette.ramp).keys()];

/** The rules of the picture itself; they go along when it is exported. */
export const RULES = `
.pb-diagram text{fill:var(--pb-text)} .pb-diagram text[fill="${palette.light.dim}"]{fill:var(--pb-dim)}
.pb-diagram .edge path{stroke:var(--pb-edge)} .pb-diagram .edge polygon{stroke:var(--pb-edge);fill:var(--pb-edge)}
${shapes("")}{fill:var(--pb-card);stroke:var(--pb-traced)}
.pb-diagram .node>polyline{fill:none}
.pb-diagram .reference text{fill:var(--pb-dim)}
.pb-diagram .cluster>path,.pb-diagram .cluster>polygon{fill:var(--pb-cluster);stroke:var(--pb-cluster-line)} .pb-diagram .cluster text{fill:var(--pb-dim)}
${shapes(".reused")}{stroke:var(--pb-reused)}
${["added", "removed", "changed"].map((change) => `${shapes(`.${change}`)}{stroke:var(--pb-change)}`).join("\n")}
${["failed", "leaf", "unvisited"].map((status) => `${shapes(`.${status}`)}{stroke:var(--pb-${status})}`).join("\n")}
${["failed", "leaf"].map((status) => `.pb-diagram .cluster-${status}>path,.pb-diagram .cluster-${status}>polygon{stroke:var(--pb-${status})}`).join("\n")}
${fills("ramp", steps)}
${fills("diverging", steps)}
${fills("category", [...Array(palette.categories).keys()])}
${fills("precision", Object.keys(palette.precision))}
`;
