/** Why layers are not as planned: equal reasons once, with the number of their layers. */

import { make } from "../render/dom";
import { act, type BenchModel } from "./model";
import { counted } from "./numbers";
import { patternOf } from "./patterns";
import { departs } from "./rows";

export interface Reason {
  text: string;
  layers: number[];
}

const NUMBER = /\d+(?:\.\d+)?/g;
const NAMED = 3; // patterns of names in a line

/** The reasons of layers, most layers first. Reasons that differ in numbers only are one, with the ranges of these. */
export function groupedReasons(whys: readonly string[]): Reason[] {
  const groups = new Map<string, { texts: Set<string>; layers: number[] }>();
  for (const [layer, why] of whys.entries()) {
    if (!why) continue;
    const shape = why.replace(NUMBER, "#");
    const group = groups.get(shape) ?? { texts: new Set<string>(), layers: [] };
    groups.set(shape, group);
    group.texts.add(why);
    group.layers.push(layer);
  }
  const reasons = [...groups.values()].map(({ texts, layers }) => ({ text: joined([...texts]), layers }));
  return reasons.sort((one, other) => other.layers.length - one.layers.length);
}

/** Texts that differ in numbers only, as one. */
function joined(texts: readonly string[]): string {
  const numbers = texts.map((text) => text.match(NUMBER) ?? []);
  let at = -1;
  return texts[0]!.replace(NUMBER, (own) => {
    at += 1;
    const sorted = numbers.map((each) => each[at]!).sort((one, other) => Number(one) - Number(other));
    return sorted[0] === sorted.at(-1) ? own : `${sorted[0]} to ${sorted.at(-1)}`;
  });
}

/** The lines; each unfolds to its layers, which a click selects. */
export function reasonsView(model: BenchModel): HTMLElement {
  const [layers, outcomes, applied] = [model.get("layers"), model.get("outcomes"), model.get("applied")];
  const [decisions, planned] = [model.get("decisions"), model.get("planned")];
  const whys = applied.map((outcome, layer) => {
    const [plan, done] = [decisions[planned[layer] ?? -1] ?? null, outcomes[outcome] ?? null];
    return done !== null && departs(plan, done) ? done.why : "";
  });
  const reasons = groupedReasons(whys);
  const place = make("section", { class: "pbb-reasons", "aria-label": "Why layers differ from the plan" });
  if (!reasons.length) return place;
  const lines = reasons.map(({ text, layers: members }) => {
    const names = members.map((layer) => layers[layer]?.fqn ?? "");
    return reasonLine(model, text, names);
  });
  place.append(make("h4", {}, "Why layers differ from the plan"), ...lines);
  return place;
}

function reasonLine(model: BenchModel, text: string, names: readonly string[]): HTMLElement {
  const patterns = [...new Set(names.map(patternOf))];
  const rest = patterns.length - NAMED;
  const shown = patterns.slice(0, NAMED).join(", ") + (rest > 0 ? ` and ${rest} more` : "");
  const head = names.length === 1 ? names[0]! : `${counted(names.length, "layer")} (${shown})`;
  const summary = make("summary", {}, make("b", {}, names.length === 1 ? head || "the model" : head), `: ${text}`);
  const details = make("details", { class: "pbb-reason", "data-name": text }, summary);
  // a thousand buttons are made only for who wants to see them
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const buttons = names.map((fqn) => {
      const click = (): void => act(model, "select", { fqn });
      return make("li", {}, make("button", { class: "pbb-link", click }, fqn || "the model"));
    });
    details.append(make("ul", {}, ...buttons));
  });
  return details;
}
