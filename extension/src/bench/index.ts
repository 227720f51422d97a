/**
 * The controls of the workbench: axes, layers, target, compile, progress, code.
 *
 * Everything shown comes from traits that Python sets, and every click asks Python for an action; nothing is decided
 * here.
 */

import { make } from "../render/dom";
import { LayerTable } from "./layers";
import type { BenchModel, BenchTraits } from "./model";
import { axesView, codeView, headerView, runView, targetView } from "./views";

type Cleanups = (() => void)[];

function section(title: string, name: string, ...children: HTMLElement[]): HTMLElement {
  const heading = make("h3", {}, title);
  return make("section", { class: `pbb-section pbb-${name}`, "aria-label": title }, heading, ...children);
}

function listen(model: BenchModel, traits: readonly (keyof BenchTraits)[], changed: () => void, ends: Cleanups): void {
  for (const trait of traits) {
    model.on(`change:${trait}`, changed);
    ends.push(() => model.off(`change:${trait}`, changed));
  }
}

/** A part of the page that is built again whenever one of its traits changes; the focused control keeps the focus. */
function live(
  model: BenchModel,
  traits: readonly (keyof BenchTraits)[],
  build: (model: BenchModel) => HTMLElement,
  ends: Cleanups,
): HTMLElement {
  const place = make("div");
  const refresh = (): void => {
    const label = place.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
    const open = place.querySelector("details")?.open ?? false;
    place.replaceChildren(build(model));
    const details = place.querySelector("details");
    if (details) details.open = open;
    if (label) place.querySelector<HTMLElement>(`[aria-label="${CSS.escape(label)}"]`)?.focus();
  };
  listen(model, traits, refresh, ends);
  refresh();
  return place;
}

function render({ model, el }: { model: BenchModel; el: HTMLElement }): () => void {
  const ends: Cleanups = [];
  const root = model.get("part") === "code" ? codeOf(model, ends) : controlsOf(model, ends);
  root.addEventListener("keydown", (event) => event.stopPropagation()); // Lab's shortcuts must not run while typing here
  el.append(root);
  return () => {
    for (const end of ends) end();
  };
}

function codeOf(model: BenchModel, ends: Cleanups): HTMLElement {
  return make("div", { class: "pbb" }, live(model, ["code"], codeView, ends));
}

function controlsOf(model: BenchModel, ends: Cleanups): HTMLElement {
  const table = new LayerTable(model);
  listen(model, ["layers", "stale"], () => table.update(), ends);
  return make(
    "div",
    { class: "pbb" },
    live(model, ["title", "subtitle", "can_undo", "can_redo"], headerView, ends),
    section("Dynamic axes", "axes", live(model, ["axes"], axesView, ends)),
    section("Layers", "layers", table.element),
    section(
      "Compile",
      "compile",
      live(model, ["target", "targets", "leaf_wrap", "leaf_label"], targetView, ends),
      live(model, ["running", "progress", "message", "stale"], runView, ends),
    ),
  );
}

export default { render };
