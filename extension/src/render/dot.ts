/** Scene to DOT: boxes with a bold name, a quiet type and shapes; modules as clusters. All text is escaped. */

import palette from "../generated/palette.json";
import { allBoxes, type Box, type Cluster, isCluster, type Scene } from "./boxes";

const FONT = "Helvetica,Arial,DejaVu Sans,sans-serif";
const LONGEST = 34;

interface Mark {
  outline: string;
  width: number;
  shape: string;
  style: string;
  glyph: string;
  word: string;
}
const STATUS = palette.status as Record<string, Mark>;
const CHANGES = palette.changes as Record<string, Mark>;
const LIGHT = palette.light;

// nslimit bounds the network simplex: without it one long edge can take minutes.
const GRAPH = {
  rankdir: "TB",
  nslimit: "5",
  nslimit1: "5",
  compound: "true",
  bgcolor: "transparent",
  fontname: FONT,
  fontsize: "11",
  nodesep: "0.28",
  ranksep: "0.34",
  pad: "0.12",
  margin: "0",
};
const NODE = {
  fontname: FONT,
  fontsize: "11",
  margin: "0.19,0.07",
  height: "0.3",
  color: STATUS["traced"]!.outline,
  fillcolor: LIGHT.card,
  fontcolor: LIGHT.text,
};
const EDGE = { color: LIGHT.edge, arrowsize: "0.55", penwidth: "1" };

/** What an overlay adds to a box: a line of text and a class that colours it. */
export interface Painted {
  text: string;
  style: string;
}

/** DOT source; box number `i` of the scene is node `n<i>`, the clusters carry the positions that lead to them. */
export function toDot(
  scene: Scene,
  options: { compact?: boolean; painted?: ReadonlyMap<string, Painted> } = {},
): string {
  const graph = options.compact ? { ...GRAPH, nslimit: "1", nslimit1: "1" } : GRAPH;
  const names = new Map<string, string>();
  for (const box of allBoxes(scene.root)) names.set(box.id, `n${names.size}`);
  const lines = [
    "digraph {",
    `graph [${attributes(graph)}]`,
    `node [${attributes(NODE)}]`,
    `edge [${attributes(EDGE)}]`,
  ];
  clusterLines(scene.root, names, ["0"], lines, options.painted ?? new Map());
  for (const [source, target] of scene.edges) {
    const [from, to] = [names.get(source), names.get(target)];
    if (from && to)
      lines.push(`${from} -> ${to}${source.startsWith("ref:") ? ' [style="dashed" arrowsize="0.4"]' : ""}`);
  }
  return `${[...lines, "}"].join("\n")}\n`;
}

/** The clusters by the names that they have in the DOT source. */
export function clusterNames(
  root: Cluster,
  number: string[] = ["0"],
  found = new Map<string, Cluster>(),
): Map<string, Cluster> {
  root.members.forEach((member, i) => {
    if (!isCluster(member)) return;
    found.set(`cluster_${[...number, i].join("_")}`, member);
    clusterNames(member, [...number, String(i)], found);
  });
  return found;
}

function clusterLines(
  cluster: Cluster,
  names: Map<string, string>,
  number: string[],
  lines: string[],
  painted: ReadonlyMap<string, Painted>,
): void {
  cluster.members.forEach((child, i) => {
    if (!isCluster(child)) {
      lines.push(`${names.get(child.id)} [${boxAttributes(child, painted.get(child.id))}]`);
      return;
    }
    const quiet = child.status === "traced" || child.status === "unvisited";
    const inner = [...number, String(i)];
    lines.push(`subgraph "cluster_${inner.join("_")}" {`);
    lines.push(
      `graph [${attributes({ label: label([escaped(child.title)]), labeljust: "l", style: "rounded,filled", fillcolor: LIGHT.cluster, color: quiet ? LIGHT.cluster_line : STATUS[child.status]!.outline, fontcolor: LIGHT.dim, margin: "10", class: `cluster-${child.status}`, id: `module:${child.id}`, tooltip: child.fqn })}]`,
    );
    clusterLines(child, names, inner, lines, painted);
    lines.push("}");
  });
}

function boxAttributes(box: Box, painted: Painted | undefined): string {
  const mark = STATUS[box.status] ?? STATUS["traced"]!;
  const change = CHANGES[box.change];
  const lines = [bold(box.title)];
  if (box.subtitle && box.subtitle !== box.title) lines.push(dim(box.subtitle));
  if (box.detail) lines.push(dim(box.detail));
  const badges = [
    box.status === "traced" ? "" : `${mark.glyph} ${mark.word}`,
    box.inside.map(([status, count]) => `${STATUS[status]!.glyph} ${count}`).join("  "),
    box.calls ? `${palette.reused.glyph} ${box.calls}` : "",
    change ? `${change.glyph} ${change.word}` : "",
    painted?.text ?? "",
  ].filter(Boolean);
  if (badges.length) lines.push(bold(badges.join("  ")));
  const [shape, style] = shapeOf(box, mark, change);
  const look =
    box.status !== "traced" && STATUS[box.status] ? mark : (change ?? (box.calls ? palette.reused : STATUS["traced"]!));
  const result: Record<string, string> = {
    label: label(box.kind === "reference" ? [dim(box.title)] : lines),
    shape,
    style,
    color: look.outline,
    penwidth: String(look.width),
    class: [box.status, box.kind, box.calls ? "reused" : "", box.change, painted?.style ?? ""]
      .filter(Boolean)
      .join(" "),
    id: box.id,
    tooltip: box.fqn || box.title,
  };
  if (box.calls) result["peripheries"] = "2";
  return attributes(result);
}

function shapeOf(box: Box, mark: Mark, change: Mark | undefined): [string, string] {
  if (box.kind === "reference") return ["plaintext", ""];
  if ((box.kind === "input" || box.kind === "output") && box.status === "traced") return ["oval", "filled"];
  if ((box.kind === "module" || box.kind === "fold") && box.status === "traced")
    return [box.kind === "module" ? "folder" : "box3d", "filled"];
  return change ? [change.shape, change.style] : [mark.shape, mark.style];
}

function bold(text: string): string {
  return `<B>${escaped(text)}</B>`;
}

function dim(text: string): string {
  return `<FONT COLOR="${LIGHT.dim}" POINT-SIZE="9.5">${escaped(text)}</FONT>`;
}

const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };

/** A user's text inside an HTML-like label: shortened, without control characters, escaped. */
function escaped(text: string): string {
  const plain = printable(text) || [" "];
  const short =
    plain.length <= LONGEST ? plain : [...plain.slice(0, LONGEST / 2), "…", ...plain.slice(-LONGEST / 2 + 1)];
  return (short.join("") || " ").replace(/[&<>"']/g, (c) => ENTITIES[c]!);
}

function printable(text: string): string[] {
  return [...text].map((c) => (UNPRINTABLE.test(c) ? " " : c));
}

function label(lines: string[]): string {
  return `<${lines.join("<BR/>")}>`;
}

function attributes(given: Record<string, string>): string {
  return Object.entries(given)
    .map(([name, value]) => `${name}=${name === "label" && value.startsWith("<") ? value : quoted(value)}`)
    .join(" ");
}

function quoted(value: string): string {
  return `"${printable(value).join("").replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
}
