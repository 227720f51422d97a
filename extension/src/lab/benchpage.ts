/** A saved bench as a page: every text of a model becomes text, never markup. */

import { chartSvg } from "../chart";
import type { Fact, ShownBench, ShownFailure, Table } from "../generated/saved";
import { samplesView } from "../samples";
import { element } from "./widgets";

const FIRST_ROWS = 200;

/** The sections below the diagram. */
export function sections(shown: ShownBench): HTMLElement[] {
  return [
    section("Settings", facts(shown.settings)),
    section("Cannot be captured", list(shown.failures.map(failure))),
    section("What the graph takes for granted", assumptions(shown.assumptions)),
    section("Accuracy against latency", chartSvg(shown.chart, "pbl-bench-chart")),
    ...shown.tables.map((each) => section(each.title, table(each))),
    section("Samples on which they differ", samplesView(shown.samples)),
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
