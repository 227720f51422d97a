/** Parts of the page that follow traits. */

import { make } from "../render/dom";
import type { BenchModel, BenchTraits } from "./model";

export type Cleanups = (() => void)[];
export type Trait = keyof BenchTraits;

/** Calls `changed` once for all of the traits that one message sets. */
export function listen(model: BenchModel, traits: readonly Trait[], changed: () => void, ends: Cleanups): void {
  let due = false;
  let over = false;
  const soon = (): void => {
    if (due) return;
    due = true;
    queueMicrotask(() => {
      due = false;
      if (!over) changed();
    });
  };
  for (const trait of traits) model.on(`change:${trait}`, soon);
  ends.push(() => {
    over = true;
    for (const trait of traits) model.off(`change:${trait}`, soon);
  });
}

/** The event that makes a part build itself again. */
export const REBUILD = "pbb-rebuild";

function isTyping(place: HTMLElement): boolean {
  const focused = document.activeElement;
  return focused instanceof HTMLInputElement && /text|search|number/.test(focused.type) && place.contains(focused);
}

/**
 * A part that is built again whenever one of its traits changes. The focused control keeps the focus, what is unfolded
 * stays so, and while somebody types in it the part waits.
 */
export function live(
  model: BenchModel,
  traits: readonly Trait[],
  build: (model: BenchModel) => HTMLElement,
  ends: Cleanups,
): HTMLElement {
  const place = make("div", { class: "pbb-live" });
  let waiting = false;
  const refresh = (): void => {
    if (isTyping(place)) {
      waiting = true;
      return;
    }
    waiting = false;
    const label = place.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
    const open = new Set([...place.querySelectorAll("details[open]")].map(nameOf));
    place.replaceChildren(build(model));
    for (const details of place.querySelectorAll("details")) details.open ||= open.has(nameOf(details));
    if (label) place.querySelector<HTMLElement>(`[aria-label="${CSS.escape(label)}"]`)?.focus();
  };
  place.addEventListener("focusout", () => {
    if (waiting) queueMicrotask(refresh);
  });
  place.addEventListener(REBUILD, refresh);
  listen(model, traits, refresh, ends);
  refresh();
  return place;
}

function nameOf(details: Element): string {
  return details.getAttribute("data-name") ?? details.querySelector("summary")?.textContent ?? "";
}
