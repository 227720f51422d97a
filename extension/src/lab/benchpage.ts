/** A saved bench as a page: every text of a model becomes text, never markup. */

import type { Chart, ChartPoint, Fact, ShownBench, ShownFailure, Table } from "../generated/saved";
import { element } from "./widgets";

const SVG = "http://www.w3.org/2000/svg";
const FIRST_ROWS = 200;

/** The sections below the diagram. */
export function sections(shown: ShownBench): HTMLElement[] {
  return [
    section("Settings", facts(shown.settings)),
    section("Cannot be captured", list(shown.failures.map(failure))),
    section("What the graph takes for granted", assumptions(shown.assumptions)),
    section("Accuracy against latency", chart(shown.chart)),
    ...shown.tables.map((each) => section(each.title, table(each))),
    section("Code", shown.code ? element("pre", "", shown.code) : null),
    section("Environment", facts(shown.environment)),
  ].filter((made) => made !== null);
}

function section(title: string, content: Element | null): HTMLElement | null {
  if (content === null) return null;
  const made = element("section");
  made.append(element("h2", "", title), content);
  return made;
}

function list(items: HTMLElement[]): HTMLElement | null {
  if (!items.length) return null;
  const made = element("div");
  made.append(...items);
  return made;
}

function assumptions(texts: readonly string[]): HTMLElement | null {
  if (!texts.length) return null;
  const made = element("ul");
  made.append(...texts.map((text) => element("li", "", text)));
  return made;
}

function facts(all: readonly Fact[]): HTMLElement | null {
  if (!all.length) return null;
  const made = element("dl");
  for (const { name, value } of all) made.append(element("dt", "", name), element("dd", "", value));
  return made;
}

function failure(one: ShownFailure): HTMLElement {
  const made = element("div", "pbl-bench-failure");
  const state = one.state ? ` (${one.state})` : "";
  const place = one.place ? ` at ${one.place}` : "";
  made.append(element("b", "", one.title), `: ${one.fqn || "the model itself"}, ${one.type}${place}${state}`);
  if (one.code) made.append(element("pre", "", one.code));
  made.append(element("p", "", one.remedy));
  return made;
}

/** A table of which the first rows are made at once, the others when they are asked for. */
export function table(data: Table): HTMLElement | null {
  if (!data.rows.length) return null;
  const made = element("table");
  const head = element("tr");
  head.append(...data.columns.map((text, i) => cell("th", text, data.numbers.includes(i))));
  const body = element("tbody");
  const add = (from: number, to: number): void =>
    body.append(
      ...data.rows.slice(from, to).map((row) => {
        const line = element("tr");
        line.append(...row.map((text, i) => cell("td", text, data.numbers.includes(i))));
        return line;
      }),
    );
  add(0, FIRST_ROWS);
  const top = element("thead");
  top.append(head);
  made.append(top, body);
  const frame = element("div", "pbl-bench-table");
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", data.title);
  frame.append(made);
  const left = data.rows.length - FIRST_ROWS;
  if (left > 0) {
    const more = element("button", "", `Show ${left} more rows`);
    more.type = "button";
    more.addEventListener("click", () => {
      add(FIRST_ROWS, data.rows.length);
      more.remove();
    });
    frame.append(more);
  }
  if (data.more) frame.append(element("p", "", `and ${data.more} more in the file`));
  return frame;
}

function cell(kind: "th" | "td", text: string, isNumber: boolean): HTMLElement {
  return element(kind, isNumber ? "pbl-bench-number" : "", text);
}

/** The chart as Python placed it. */
export function chart(data: Chart): SVGSVGElement | null {
  if (!data.points.length) return null;
  const root = svg("svg", { viewBox: `0 0 ${data.width} ${data.height}`, role: "img", class: "pbl-bench-chart" });
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
  root.append(...data.points.map(mark));
  for (const point of data.points)
    if (point.label) root.append(label(point.label_x, point.label_y, point.label, "middle", ""));
  return root as SVGSVGElement;
}

function line(front: readonly number[]): string {
  const parts: string[] = [];
  for (let i = 0; i + 1 < front.length; i += 2) parts.push(`${i ? "L" : "M"}${front[i]} ${front[i + 1]}`);
  return parts.join("");
}

function mark(point: ChartPoint): SVGElement {
  const { x, y, radius } = point;
  const group = svg("g", { class: point.kind });
  const whiskers = `M${x} ${y}H${point.x_end}M${x} ${point.y_low}V${point.y_high}`;
  const diamond = `M${x} ${y - radius}L${x + radius} ${y}L${x} ${y + radius}L${x - radius} ${y}Z`;
  const shape = point.kind === "float" ? path("mark", diamond) : svg("circle", { cx: x, cy: y, r: radius });
  group.append(titled(`${point.name}: ${point.note}`), path("whisker", whiskers), shape);
  return group;
}

function titled(text: string): SVGElement {
  const title = svg("title", {});
  title.textContent = text;
  return title;
}

function label(x: number, y: number, text: string, anchor: string, kind: string): SVGElement {
  const made = svg("text", { x, y, "text-anchor": anchor, class: kind });
  made.textContent = text;
  return made;
}

function path(kind: string, d: string): SVGElement {
  return svg("path", { class: kind, d });
}

function svg(tag: string, attributes: Record<string, string | number>): SVGElement {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}
