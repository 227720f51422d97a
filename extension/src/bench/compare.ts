/** In what two runs differ. */

import type { DifferenceRow } from "../generated/widgets";
import { make } from "../render/dom";
import { samplesView } from "../samples";
import { DIM } from "./dim";
import type { BenchModel } from "./model";
import { counted } from "./numbers";

const LAYERS = 200; // that are listed

export function differenceView(model: BenchModel): HTMLElement {
  const { first, second, results, settings, layers, note, colours, samples } = model.get("difference");
  const place = make("div", { class: "pbb-compare" });
  if (!first || !second) return place;
  place.append(make("h4", {}, `${second} against ${first}`)); // as colours and samples have it
  if (note) place.append(make("p", { class: "pbb-remedy" }, note));
  if (colours.title) place.append(make("p", DIM, `The diagram is coloured by ${colours.title}.`));
  if (!results.length && !settings.length && !layers.length) place.append(make("p", {}, "They do not differ."));
  const parts: [string, readonly DifferenceRow[]][] = [
    ["Results", results],
    ["Settings", settings],
    [`Layers (${layers.length})`, layers.slice(0, LAYERS)],
  ];
  const compared = samplesView(samples);
  for (const [title, rows] of parts) {
    if (rows.length) place.append(table(title, rows, first, second));
    if (rows === results && compared) place.append(compared); // the numbers, then where they come from
  }
  const rest = layers.length - LAYERS;
  if (rest > 0) place.append(make("p", DIM, `and ${counted(rest, "more layer")}`));
  return place;
}

function table(title: string, rows: readonly DifferenceRow[], first: string, second: string): HTMLElement {
  const head = [title, first, second].map((text) => make("th", { scope: "col", title: text }, text));
  const body = rows.map(({ what, first: one, second: other }) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", title: what }, what),
      make("td", {}, one || "–"),
      make("td", {}, other || "–"),
    ),
  );
  return make("table", { "aria-label": title }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}
