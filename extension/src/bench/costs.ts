/** What quantizing each layer alone costs, and its share of the time: the action that measures it, and bars. */

import type { LayerColumn } from "../generated/widgets";
import { make } from "../render/dom";
import { brushRows } from "./brush";
import { actButton } from "./buttons";
import { DIM } from "./dim";
import { previewRows } from "./hover";
import { type Cleanups, live } from "./live";
import { act, type BenchModel } from "./model";
import { shortNumber } from "./numbers";
import { outcomeView } from "./outcome";

export const NAMED = 10; // layers that have a bar
const LETTERS = 30; // of a name; its end says most

export interface Bar {
  layer: number;
  value: number;
  /** Of the longest bar. */
  share: number;
}

/** The layers that stand out, the worst first. Where the least is the worst, a bar says how far it is from the best. */
export function barsOf({ values, worst }: Pick<LayerColumn, "values" | "worst">): Bar[] {
  const known = values.flatMap((value, layer) => (value === null ? [] : [{ layer, value }]));
  const sign = worst === "least" ? 1 : -1;
  known.sort((one, other) => sign * (one.value - other.value) || one.layer - other.layer);
  const [first, last] = [known[0]?.value ?? 0, known.at(-1)?.value ?? 0];
  const from = worst === "least" ? last : 0;
  const longest = Math.abs(first - from);
  return known.slice(0, NAMED).map(({ layer, value }) => {
    return { layer, value, share: longest ? Math.abs(value - from) / longest : 1 };
  });
}

export function costsView(model: BenchModel, ends: Cleanups): HTMLElement {
  const line = live(model, ["is_measuring", "layers"], measureLine, ends);
  const outcome = outcomeView(model, "layers", ends, true);
  const bars = live(model, ["columns", "layers", "measured", "selected"], barsView, ends);
  const names = (target: Element): string[] => {
    const fqn = target.closest<HTMLElement>("[data-fqn]")?.dataset["fqn"];
    return fqn ? [fqn] : [];
  };
  previewRows(bars, names, ends);
  brushRows(bars);
  return make("section", { class: "pbb-costs", "aria-label": "What layers cost" }, line, outcome, bars);
}

/** The button that measures. */
function measureLine(model: BenchModel): HTMLElement {
  const measuring = model.get("is_measuring");
  const title = measuring
    ? "Layers are measured with these settings, or will be"
    : "What quantizing each layer alone does to the output, and its share of the time of a call";
  const disabled = measuring || !model.get("layers").length;
  const button = actButton(model, "measure_layers", "Measure layers", { title, disabled });
  return make("div", { class: "pbb-line" }, button);
}

function barsView(model: BenchModel): HTMLElement {
  const place = make("div", { class: "pbb-stack" });
  const columns = model.get("columns").filter((column) => column.worst && barsOf(column).length);
  const measured = model.get("measured");
  if (columns.length) place.append(make("div", { class: "pbb-bars" }, ...columns.map((each) => barList(model, each))));
  if (measured) place.append(make("p", DIM, measured));
  return place;
}

function barList(model: BenchModel, column: LayerColumn): HTMLElement {
  const { title, unit, stale, worst, help } = column;
  const bars = barsOf(column);
  const which = worst === "least" ? "the longer, the worse" : "";
  const head = make("b", { title: help }, `${title} (${unit})`);
  const caption = make("figcaption", {}, head, make("span", DIM, ` ${which}`));
  const list = make("ol", {}, ...bars.map((bar) => barOf(model, column, bar)));
  const figure = make("figure", { class: "pbb-bar-list", "data-column": column.key }, caption, list);
  if (stale) {
    figure.classList.add("pbb-old-bars");
    caption.append(make("small", {}, `Old: ${stale}`));
  }
  return figure;
}

function barOf(model: BenchModel, column: LayerColumn, { layer, value, share }: Bar): HTMLElement {
  const fqn = model.get("layers")[layer]?.fqn ?? "";
  const name = fqn.length <= LETTERS ? fqn : `…${fqn.slice(1 - LETTERS)}`;
  const chosen = model.get("selected") === fqn;
  const number = shortNumber(value);
  const note = column.notes[column.noted[layer] ?? -1] ?? "";
  const attributes = {
    class: "pbb-bar",
    "data-fqn": fqn,
    "aria-pressed": String(chosen),
    title: [fqn, note, "Drag over several, or shift and click, to select them all"].filter(Boolean).join("\n"),
    click: () => act(model, "select", { fqn: chosen ? "" : fqn }),
  };
  const fill = make("span", { class: "pbb-bar-fill", style: `width:${Math.max(1, Math.round(100 * share))}%` });
  const track = make("span", { class: "pbb-bar-track", "aria-hidden": "true" }, fill);
  const words = make("span", { class: "pbb-bar-name" }, name || "the model itself");
  const end = make("span", { class: "pbb-bar-number" }, number);
  // its words are its name for who hears it, with a space between them
  return make("li", {}, make("button", attributes, words, " ", track, end));
}
