/** How the last action ended: a sentence with its numbers, or an error with its places, and what can be done next. */

import type { BenchActions, Card, CardButton, RunOutcome, Trouble } from "../generated/widgets";
import { make, withCode } from "../render/dom";
import { sharedNow } from "../shared";
import { copyButton, folded } from "./buttons";
import { DIM } from "./dim";
import { act, type BenchModel } from "./model";
import { duration } from "./numbers";

/** What a card's button asks its page for: a place to go to, or a file; and the events that ask. */
export type Goal = "results" | "compare" | "export" | "code" | "search" | "run";
export const GO = "pbb-go";
export const TAKE = "pbb-take";

const TROUBLES = 5; // that an error's card shows
const SHORT = 600; // characters of an error that is shown whole
const GOALS: ReadonlySet<string> = new Set<Goal>(["results", "compare", "export", "code"]);

/** A card; `seconds` is how long the action took, 0 where that says nothing. */
export function cardView(model: BenchModel, card: Card, seconds = 0): HTMLElement {
  return card.kind === "error" ? errorCard(model, card) : infoCard(model, card, seconds);
}

/** A card in one line. */
export function cardLine({ text, outcomes }: Card): string {
  const numbers = outcomes.map(({ name, facts }) => {
    const values = facts.map(({ value }) => value).join(", ");
    return outcomes.length > 1 ? `${name}: ${values}.` : `${values}.`;
  });
  return [text, ...numbers].join(" ");
}

function infoCard(model: BenchModel, { text, outcomes, buttons }: Card, seconds: number): HTMLElement {
  const took = seconds > 0 && outcomes.length ? [make("span", DIM, ` Took ${duration(seconds)}.`)] : [];
  const row = make("div", { class: "pbb-actions" }, ...buttons.map((each) => cardButton(model, each)));
  return make(
    "div",
    { class: "pbb-message pbb-info" },
    make("p", { role: "status" }, outcomes.length ? make("strong", {}, text) : text, ...took),
    ...outcomesView(outcomes),
    ...(buttons.length ? [row] : []),
  );
}

/** The numbers of runs, a row for each. */
function outcomesView(outcomes: readonly RunOutcome[]): HTMLElement[] {
  if (!outcomes.length) return [];
  const rows = outcomes.flatMap(({ name, facts, note }) => [
    ...(outcomes.length > 1 ? [make("b", {}, name)] : []),
    make("dl", { class: "pbb-facts" }, ...facts.map(factView)),
    ...(note ? [make("p", DIM, note)] : []),
  ]);
  return [make("div", { class: "pbb-outcomes" }, ...rows)];
}

function factView({ label, value, note }: RunOutcome["facts"][number]): HTMLElement {
  const more = note ? [make("dd", DIM, note)] : [];
  return make("div", {}, make("dt", {}, label), make("dd", {}, make("strong", {}, value)), ...more);
}

export function cardButton(model: BenchModel, { label, action, value, again }: CardButton): HTMLElement {
  const click = ({ target }: Event): void => {
    const [first = "", second = ""] = value.split(" ");
    const ask = (event: string, detail: string | [string, string]): boolean =>
      (target as Element).dispatchEvent(new CustomEvent(event, { detail, bubbles: true }));
    if (action === "compare") act(model, "compare_runs", { first, second });
    if (GOALS.has(action)) ask(GO, action);
    else if (action === "save_model" || action === "download") ask(TAKE, [action, value]);
    else act(model, "repair", { how: action as BenchActions["repair"]["how"], value, again });
  };
  return make("button", { click }, label);
}

/** An error: what fails and where, what can be done about it, and all that was said, folded where it is long. */
function errorCard(model: BenchModel, { text, troubles, details, outcomes, buttons }: Card): HTMLElement {
  const places = troubles.slice(0, TROUBLES).map((trouble) => item(trouble));
  const more = troubles.length > TROUBLES ? [make("li", {}, `and ${troubles.length - TROUBLES} more`)] : [];
  const row = make("div", { class: "pbb-actions" }, ...buttons.map((each) => cardButton(model, each)));
  row.querySelector("button")?.classList.add("pbb-primary");
  const rest = places.length ? "" : afterTitle(text, details);
  row.append(copyButton(() => [text, details].filter(Boolean).join("\n\n"), "Copy report"));
  return make(
    "div",
    { class: "pbb-message pbb-error", role: "alert" },
    make("strong", {}, text),
    ...(places.length ? [make("ul", {}, ...places, ...more)] : []),
    ...(rest ? [make("div", {}, ...withCode(rest))] : []),
    row,
    ...(details && !rest ? [folded("All that was said", details)] : []),
    ...(outcomes.length ? [make("p", {}, "Compiled all the same:"), ...outcomesView(outcomes)] : []),
  );
}

/** What an error says after its title, its remedy among it; "" where that is long. */
function afterTitle(title: string, details: string): string {
  return details.length <= SHORT && details.startsWith(`${title}. `) ? details.slice(title.length + 2) : "";
}

function item(trouble: Trouble): HTMLElement {
  return make(
    "li",
    {},
    make("div", {}, make("b", {}, trouble.fqn || "the model itself"), ` ${trouble.type} · ${trouble.reason}`),
    ...placeOf(trouble),
    ...(trouble.remedy ? [make("div", DIM, ...withCode(trouble.remedy))] : []),
  );
}

/** The line of a failure, with a button that opens it where the page can. */
function placeOf({ place, code, file, line }: Trouble): HTMLElement[] {
  if (!place) return [];
  const text = make("code", { class: "pbb-place" }, `${place}   ${code}`);
  const open = sharedNow().openSource;
  if (!open || !file) return [text];
  const click = (): void => open(file, line, code, text);
  const button = make("button", { title: `Open ${place}`, click }, "Open line");
  return [text, make("div", { class: "pbb-actions" }, button)];
}
