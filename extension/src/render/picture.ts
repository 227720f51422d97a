/** The SVG that Graphviz made, as elements of the page: checked, coloured by classes, joined to the boxes of the scene. */

import type { Drawing } from "./engine";
import type { Box } from "./scene";
import palette from "../generated/palette.json";

const SVG = "http://www.w3.org/2000/svg";
const DRAWING = new Set(["svg", "g", "path", "polygon", "polyline", "ellipse", "text"]);
const GEOMETRY = new Set(["d", "points", "cx", "cy", "rx", "ry", "x", "y", "transform", "viewBox", "width", "height", "class", "text-anchor", "font-family", "font-size", "font-weight", "fill", "stroke", "stroke-width", "stroke-dasharray", "text-decoration"]);
const SHAPES = ["path", "polygon", "polyline", "ellipse"];
const WORDS = palette.status as Record<string, { word: string }>;

export interface Part { id: string; element: SVGGElement; title: string; status: string; box: Box | null; }

export interface Picture {
  svg: SVGSVGElement;
  /** Size in pixels at zoom 1. */
  width: number;
  height: number;
  /** Boxes and open modules, by id. */
  parts: Map<string, Part>;
  edges: { from: string; to: string; element: SVGGElement }[];
}

/** Builds the elements of a drawing; everything that is no drawing is left out. */
export function makePicture(text: string, drawing: Drawing, label: string): Picture {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  if (parsed.nodeName !== "svg") throw new Error("Graphviz gave no picture.");
  const picture: Picture = { svg: document.createElementNS(SVG, "svg"), width: 0, height: 0, parts: new Map(), edges: [] };
  const clusters = new Map(drawing.clusters.map((cluster) => [cluster.name, cluster]));
  copy(parsed, picture.svg, (name, group) => {
    const kind = group.classList[0];
    if (kind === "node") {
      const box = drawing.boxes[Number(name.slice(1))];
      if (box) picture.parts.set(box.id, { id: box.id, element: group, title: describe(box), status: box.status, box });
    } else if (kind === "cluster") {
      const cluster = clusters.get(name);
      if (cluster) picture.parts.set(`module:${cluster.id}`, { id: `module:${cluster.id}`, element: group, title: `${cluster.fqn}, open module`, status: "", box: null });
    } else if (kind === "edge") {
      const [from, to] = name.split("->").map((end) => drawing.boxes[Number(end.slice(1))]?.id ?? "");
      if (from && to) picture.edges.push({ from, to, element: group });
    }
  });
  const scale = 96 / 72;
  picture.width = parseFloat(parsed.getAttribute("width") ?? "0") * scale;
  picture.height = parseFloat(parsed.getAttribute("height") ?? "0") * scale;
  picture.svg.classList.add("pb-diagram");
  picture.svg.setAttribute("aria-label", label);
  const style = document.createElementNS(SVG, "style");
  style.textContent = RULES;
  picture.svg.prepend(style);
  return picture;
}

function copy(from: Element, to: SVGElement, seen: (name: string, group: SVGGElement) => void): void {
  for (const attribute of from.attributes) if (GEOMETRY.has(attribute.name)) to.setAttribute(attribute.name, attribute.value);
  let name = "";
  for (const child of from.children) {
    if (child.nodeName === "title") name = child.textContent ?? "";
    else if (child.nodeName === "a" || (child.nodeName === "g" && child.id.startsWith("a_"))) copyInto(child, to, seen);
    else if (DRAWING.has(child.nodeName)) {
      const made = document.createElementNS(SVG, child.nodeName) as SVGElement;
      to.append(made);
      copy(child, made, seen);
      if (child.nodeName === "text") made.textContent = child.textContent;
    }
  }
  if (to.classList[0] === "node") centreLines(to);
  if (name && to.nodeName === "g") seen(name, to as SVGGElement);
}

/** Lines of text start where Graphviz thought they would; fonts differ, so they are put in the middle of their box. */
function centreLines(node: SVGElement): void {
  const lines = [...node.children].filter((child) => child.nodeName === "text");
  const xs = [...node.children].flatMap((child) => xsOf(child));
  if (!xs.length) return;
  const middle = (Math.min(...xs) + Math.max(...xs)) / 2;
  lines.forEach((line, i) => {
    line.setAttribute("text-anchor", "middle");
    line.setAttribute("x", String(middle));
    if (lines.length > 1) line.setAttribute("y", String(Number(line.getAttribute("y")) + (i ? 0.6 : -0.8)));
  });
}

function xsOf(shape: Element): number[] {
  if (shape.nodeName === "ellipse") return [Number(shape.getAttribute("cx"))];
  const points = shape.getAttribute("points") ?? shape.getAttribute("d") ?? "";
  return [...points.matchAll(/(-?[\d.]+),-?[\d.]+/g)].map((match) => Number(match[1]));
}

/** Links carry only tooltips: what is in them is taken out. */
function copyInto(from: Element, to: SVGElement, seen: (name: string, group: SVGGElement) => void): void {
  const inner = document.createElementNS(SVG, "g") as SVGGElement;
  copy(from, inner, seen);
  to.append(...inner.childNodes);
}

function describe(box: Box): string {
  const inside = box.inside.map(([status, count]) => `${count} ${WORDS[status]?.word ?? status} inside`);
  const name = box.kind === "reference" ? `reference to ${box.title.replace(/^[◄►] /, "")}` : box.fqn && box.kind !== "fold" ? box.fqn : box.title;
  const words = [name, box.title === name ? "" : box.title, box.subtitle, box.detail, box.status === "traced" ? "" : (WORDS[box.status]?.word ?? box.status), ...inside, box.calls ? `call ${box.calls}` : "", box.change];
  return [...new Set(words.filter(Boolean))].join(", ");
}

function shapes(of: string): string {
  return SHAPES.map((shape) => `.pb-diagram .node${of}>${shape}`).join(",");
}

function swatches(name: string, keys: readonly (string | number)[]): string {
  return keys.map((key) => `.pbd-swatch .pb-${name}-${key}{background:var(--pb-${name}-${key})}`).join(" ");
}

function fills(name: string, keys: readonly (string | number)[]): string {
  return swatches(name, keys) + keys.map((key) => `${shapes(`.pb-${name}-${key}`)}{fill:var(--pb-${name}-${key})} .pb-diagram .pb-${name}-${key} text{fill:var(--pb-${name}-${key}-text)!important}`).join("\n");
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
