/** What the head says of the samples, the data and the metric, each line with the button that mends it. */

import type { InputNote } from "../generated/widgets";
import { make, withCode } from "../render/dom";
import { type Cleanups, live } from "./live";
import { act, type BenchModel } from "./model";

const SIGNS: Record<InputNote["kind"], string> = { "": "", hint: "?", bad: "⚠" };
const SAID: Record<InputNote["kind"], string> = { "": "Note", hint: "Hint", bad: "Does not fit" };

export function notesView(model: BenchModel, ends: Cleanups): HTMLElement {
  return live(model, ["notes"], () => make("div", {}, ...listOf(model)), ends);
}

function listOf(model: BenchModel): HTMLElement[] {
  const notes = model.get("notes");
  if (!notes.length) return [];
  const items = notes.map((note) => itemOf(model, note));
  return [make("ul", { class: "pbb-notes", "aria-label": "Samples, data and metric" }, ...items)];
}

function itemOf(model: BenchModel, { kind, text, label, paths, dim, dynamic }: InputNote): HTMLElement {
  const sign = SIGNS[kind]
    ? [make("span", { class: "pbb-kind", role: "img", "aria-label": SAID[kind] }, SIGNS[kind])]
    : [];
  const click = (): void => act(model, "set_axis", { path: paths, dim, dynamic });
  const button = label ? [make("button", { click }, label)] : [];
  return make("li", { "data-kind": kind }, ...sign, make("span", {}, ...withCode(text)), ...button);
}
