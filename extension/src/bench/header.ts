/** The top of the bench: the model, one sentence of state, and what is always at hand. */

import { make } from "../render/dom";
import { sharedNow } from "../shared";
import { actButton } from "./buttons";
import type { BenchModel } from "./model";

export interface HeaderEvents {
  code(): void;
  report(): void;
  /** The button that brings the guided path back. */
  guide: HTMLElement;
  /** The button that fills the window; one for all time, since it keeps the focus. */
  whole: HTMLButtonElement;
}

export function headerView(model: BenchModel, events: HeaderEvents): HTMLElement {
  const step = (action: "undo" | "redo", label: string, sign: string, enabled: boolean): HTMLElement =>
    actButton(model, action, sign, { class: "pbb-icon", "aria-label": label, title: label, disabled: !enabled });
  const click = { code: () => events.code(), report: () => events.report() };
  const title = { code: "The same in Python", report: "Results, and what can be taken away" };
  return make(
    "header",
    {},
    make("strong", { role: "heading", "aria-level": 3 }, model.get("title")),
    make("span", { class: "pbb-sentence", title: model.get("sentence") }, model.get("sentence")),
    make(
      "div",
      { class: "pbb-tools" },
      step("undo", "Undo", "↶", model.get("can_undo")),
      step("redo", "Redo", "↷", model.get("can_redo")),
      events.guide,
      make("button", { title: title.code, click: click.code }, "Code"),
      make("button", { title: title.report, click: click.report }, "Report"),
      ...besideButton(),
      events.whole,
    ),
  );
}

/** Where the page has room beside the notebook; the view that is there already does without. */
function besideButton(): HTMLElement[] {
  const open = sharedNow().openBeside;
  if (!open) return [];
  const title = "Open beside the notebook";
  const click = (event: Event): void => open(event.currentTarget as HTMLElement);
  return [make("button", { class: "pbb-icon pbb-beside", "aria-label": title, title, click }, "◫")];
}
