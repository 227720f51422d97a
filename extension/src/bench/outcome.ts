/** How an action goes and how it ended, directly under its button. */

import type { Card, RunStatus } from "../generated/widgets";
import { make } from "../render/dom";
import { type Cleanups, listen } from "./live";
import { cardView } from "./message";
import type { BenchModel } from "./model";
import { ProgressView } from "./progress";

export type About = RunStatus["about"];

/** `errorsOnly` where what succeeded is told beside its results. */
export function outcomeView(model: BenchModel, about: About, ends: Cleanups, errorsOnly = false): HTMLElement {
  const progress = new ProgressView(model, about, ends).element;
  const said = make("div", { class: "pbb-said" });
  const place = make("div", { class: "pbb-outcome", "data-about": about }, progress, said);
  let shown: Card | null = null;
  const update = (): void => {
    const running = model.get("running") && model.get("about") === about;
    const card = model.get("message");
    const tells = !running && card.about === about && card.text !== "" && !(errorsOnly && card.kind !== "error");
    progress.hidden = !running;
    said.hidden = !tells;
    place.hidden = !running && !tells;
    if (tells && card !== shown) {
      said.replaceChildren(cardView(model, card, model.get("elapsed_s")));
      requestAnimationFrame(() => showWhole(place));
    }
    shown = tells ? card : null;
  };
  listen(model, ["running", "about", "message"], update, ends);
  update();
  return place;
}

const BELOW = 120; // pixels under the window's edge, in which it lies where the button is the last thing in view

/** Scrolls where it is cut off by the lower edge of the window; what is far from there is not looked at. */
function showWhole(place: HTMLElement): void {
  const { top, bottom } = place.getBoundingClientRect();
  if (top > 0 && top < innerHeight + BELOW && bottom > innerHeight - BELOW / 4)
    place.scrollIntoView({ block: "nearest" });
}

/** What an action without a place of its own was refused for, above whatever step is shown; errors stay in the window. */
export function noticeView(model: BenchModel, ends: Cleanups): HTMLElement {
  const place = make("div", { class: "pbb-notice" });
  const click = (): void => {
    place.hidden = true;
  };
  const dismiss = make("button", { class: "pbb-dismiss", "aria-label": "Dismiss the message", click }, "✕");
  const update = (): void => {
    const card = model.get("message");
    place.hidden = card.about !== "" || card.text === "";
    place.replaceChildren(...(place.hidden ? [] : [cardView(model, card), dismiss]));
  };
  listen(model, ["message"], update, ends);
  update();
  return place;
}
