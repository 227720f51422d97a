/** What the last action had to say: a sentence, or an error with its places. */

import type { Card, Trouble } from "../generated/widgets";
import { make, withCode } from "../render/dom";
import { sharedNow } from "../shared";
import { copyButton, folded } from "./buttons";
import { act, type BenchModel } from "./model";

const TROUBLES = 5; // that an error's card shows
const SHORT = 600; // characters of an error that is shown whole

export function messageView(model: BenchModel): HTMLElement {
  const card = model.get("message");
  const place = make("div", { class: "pbb-said" });
  if (card.text) place.append(card.kind === "error" ? errorCard(model, card) : infoCard(card));
  return place;
}

function infoCard({ kind, text }: Card): HTMLElement {
  return make("p", { class: `pbb-message pbb-${kind}`, role: "status" }, text);
}

/** An error: what fails and where, what can be done about it, and all that was said, folded where it is long. */
function errorCard(model: BenchModel, { text, troubles, details, can_be_leaf }: Card): HTMLElement {
  const places = troubles.slice(0, TROUBLES).map((trouble) => item(trouble));
  const more = troubles.length > TROUBLES ? [make("li", {}, `and ${troubles.length - TROUBLES} more`)] : [];
  const buttons = make("div", { class: "pbb-actions" });
  if (can_be_leaf) {
    const label = troubles.length === 1 ? "Run it in PyTorch and compile" : "Run these in PyTorch and compile";
    const click = (): void => {
      act(model, "set_leaf_wrap", { leaf_wrap: true });
      act(model, "compile", {});
    };
    buttons.append(make("button", { type: "button", click }, label));
  }
  const rest = places.length ? "" : afterTitle(text, details);
  buttons.append(copyButton(() => [text, details].filter(Boolean).join("\n\n"), "Copy report"));
  return make(
    "div",
    { class: "pbb-message pbb-error", role: "alert" },
    make("strong", {}, text),
    ...(places.length ? [make("ul", {}, ...places, ...more)] : []),
    ...(rest ? [make("div", {}, ...withCode(rest))] : []),
    buttons,
    ...(details && !rest ? [folded("All that was said", details)] : []),
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
    ...(trouble.remedy ? [make("div", { class: "pbb-dim" }, ...withCode(trouble.remedy))] : []),
  );
}

/** The line of a failure, with a button that opens it where the page can. */
function placeOf({ place, code, file, line }: Trouble): HTMLElement[] {
  if (!place) return [];
  const text = make("code", { class: "pbb-place" }, `${place}   ${code}`);
  const open = sharedNow().openSource;
  if (!open || !file) return [text];
  const click = (): void => open(file, line, code, text);
  const button = make("button", { type: "button", title: `Open ${place}`, click }, "Open line");
  return [text, make("div", { class: "pbb-actions" }, button)];
}
