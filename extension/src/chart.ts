/** The chart of accuracy against latency as Python placed it, drawn. */

import type { Chart, ChartPoint } from "./generated/saved";
import { label, svg, titled } from "./render/svg_parts";

/** The chart; each point is a group with the number of the point in `data-point`. */
export function chartSvg(data: Chart, kind: string): SVGSVGElement | null {
  if (!data.points.length) return null;
  const root = svg("svg", { viewBox: `0 0 ${data.width} ${data.height}`, role: "img", class: kind });
  root.setAttribute("aria-label", data.title);
  root.append(titled(data.title));
  root.append(...data.x_ticks.map(({ at }) => path("grid", `M${at} ${data.top}V${data.bottom}`)));
  root.append(...data.y_ticks.map(({ at }) => path("grid", `M${data.left} ${at}H${data.right}`)));
  root.append(...data.x_ticks.map(({ at, text }) => label(at, data.bottom + 18, text, "middle", "dim")));
  root.append(...data.y_ticks.map(({ at, text }) => label(data.left - 8, at + 4, text, "end", "dim")));
  root.append(label((data.left + data.right) / 2, data.height - 10, data.x_title, "middle", "dim"));
  const side = label(0, 0, data.y_title, "middle", "dim");
  side.setAttribute("transform", `translate(16 ${(data.top + data.bottom) / 2}) rotate(-90)`);
  const up = data.better.startsWith("↖");
  root.append(side, label(data.left + 6, up ? data.top + 15 : data.bottom - 7, data.better, "start", "dim"));
  if (data.front.length > 2) root.append(path("front", line(data.front)));
  root.append(...data.points.map((point, at) => mark(point, at, data.right)));
  for (const point of data.points)
    if (point.label) root.append(label(point.label_x, point.label_y, point.label, "middle", ""));
  return root as SVGSVGElement;
}

function line(front: readonly number[]): string {
  const parts: string[] = [];
  for (let i = 0; i + 1 < front.length; i += 2) parts.push(`${i ? "L" : "M"}${front[i]} ${front[i + 1]}`);
  return parts.join("");
}

/** A point with its whiskers; one that goes on beyond the edge of the plot ends in an arrow. */
function mark(point: ChartPoint, at: number, edge: number): SVGElement {
  const { x, y, radius } = point;
  const group = svg("g", { class: point.kind, "data-point": at });
  const arrow = point.x_end < edge ? "" : "l-6-4m6 4l-6 4";
  const whiskers = `M${x} ${y}H${point.x_end}${arrow}M${x} ${point.y_low}V${point.y_high}`;
  const diamond = `M${x} ${y - radius}L${x + radius} ${y}L${x} ${y + radius}L${x - radius} ${y}Z`;
  const shape = point.kind === "float" ? path("mark", diamond) : svg("circle", { cx: x, cy: y, r: radius });
  group.append(titled(`${point.name}: ${point.note}`), path("whisker", whiskers), shape);
  return group;
}

function path(kind: string, d: string): SVGElement {
  return svg("path", { class: kind, d });
}
