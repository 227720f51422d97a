/** Parts of the page that follow traits. */

import { make } from "../render/dom";
import type { BenchModel, BenchTraits } from "./model";
import { pressInPage } from "./press";

export type Cleanups = (() => void)[];
export type Trait = keyof BenchTraits;

/** Calls `changed` once for all of the traits that one message sets, and not while something is pressed. */
export function listen(model: BenchModel, traits: readonly Trait[], changed: () => void, ends: Cleanups): void {
  const press = pressInPage();
  let due = false;
  let over = false;
  const soon = (): void => {
    if (due) return;
    due = true;
    queueMicrotask(() => press.whenFree(now));
  };
  const now = (): void => {
    due = false;
    if (!over) changed();
  };
  for (const trait of traits) model.on(`change:${trait}`, soon);
  ends.push(() => {
    over = true;
    for (const trait of traits) model.off(`change:${trait}`, soon);
  });
}

const SOON_MS = 30_000; // after which an answer no longer brings itself into view

/** Brings the answer to somebody's own click into view once it is there; what others do moves nothing here. */
export class Answers {
  private asked = Number.NEGATIVE_INFINITY;

  /** The next answer is to a click of this view. */
  ask(): void {
    this.asked = performance.now();
  }

  show(element: HTMLElement): void {
    if (performance.now() - this.asked > SOON_MS) return;
    this.asked = Number.NEGATIVE_INFINITY;
    keptInView(element);
  }
}

const SETTLES_MS = 1500; // in which what stands above an answer may still be drawn, and move it

/** Brings an element into view, again after each change of its place, until somebody scrolls or types. */
function keptInView(element: HTMLElement): void {
  const look = (): void => {
    element.scrollIntoView({ block: "nearest" });
    // of what is taller than the window, the beginning
    element.querySelector("h4")?.scrollIntoView({ block: "nearest" });
  };
  const sizes = new ResizeObserver(look);
  const end = (): void => {
    sizes.disconnect();
    for (const event of ["wheel", "pointerdown", "keydown"]) removeEventListener(event, end, true);
  };
  for (let part: Element | null = element; part && !part.matches(".pbb"); part = part.parentElement) {
    for (const each of part.parentElement?.children ?? []) sizes.observe(each);
  }
  for (const event of ["wheel", "pointerdown", "keydown"]) addEventListener(event, end, { capture: true, once: true });
  setTimeout(end, SETTLES_MS);
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
    const focused = focusIn(place);
    const open = new Set([...place.querySelectorAll("details[open]")].map(nameOf));
    place.replaceChildren(build(model));
    for (const details of place.querySelectorAll("details")) details.open ||= open.has(nameOf(details));
    if (focused) focusAgain(place, focused);
  };
  place.addEventListener("focusout", () => {
    if (waiting) queueMicrotask(() => pressInPage().whenFree(refresh));
  });
  place.addEventListener(REBUILD, refresh);
  listen(model, traits, refresh, ends);
  refresh();
  return place;
}

const STOPS = "button, input, select, summary, a[href], [tabindex]";

/** The focused control: its name, and its place among the others. */
function focusIn(place: HTMLElement): { name: string; at: number } | null {
  const focused = document.activeElement;
  if (!focused || !place.contains(focused)) return null;
  return { name: wordsOf(focused), at: [...place.querySelectorAll(STOPS)].indexOf(focused) };
}

/** Focuses the control of this name, or the one in its place: the focus must not fall back to the page's start. */
function focusAgain(place: HTMLElement, { name, at }: { name: string; at: number }): void {
  const stops = [...place.querySelectorAll<HTMLElement>(STOPS)].filter((stop) => !stop.matches(":disabled"));
  const same = name ? stops.find((stop) => wordsOf(stop) === name) : undefined;
  const next = same ?? stops[Math.min(at, stops.length - 1)] ?? place.closest<HTMLElement>("[role='tabpanel']");
  next?.focus({ preventScroll: true });
}

function wordsOf(element: Element): string {
  return element.getAttribute("aria-label") ?? element.textContent ?? "";
}

function nameOf(details: Element): string {
  return details.getAttribute("data-name") ?? details.querySelector("summary")?.textContent ?? "";
}
