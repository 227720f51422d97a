/** What the pointer is over in one view of a model is shown in the others; nothing is chosen by that. */

import type { Stage } from "./stage";

/** A diagram tells the module under the pointer, as `detail`; "" for none. */
export const HOVERED = "pb-hovered";
/** A diagram is asked to show where modules are: `detail` is a list of their names. */
export const PREVIEW = "pb-preview";

/** Joins a diagram's element to others in the page through both events. */
export function joinPreviews(element: HTMLElement, stages: () => readonly Stage[]): void {
  let told = "";
  let asked = 0;
  const tell = (fqn: string): void => {
    if (fqn === told) return;
    told = fqn;
    element.dispatchEvent(new CustomEvent(HOVERED, { bubbles: true, detail: fqn }));
  };
  element.addEventListener("pointerover", ({ target }) => tell(moduleAt(target as Element, stages())));
  element.addEventListener("pointerleave", () => tell(""));
  element.addEventListener(PREVIEW, (event) => {
    const names = (event as CustomEvent<string[]>).detail;
    const ticket = ++asked;
    for (const stage of stages()) void show(stage, names, () => ticket === asked);
  });
}

function moduleAt(target: Element, stages: readonly Stage[]): string {
  const node = target.closest("g.node");
  if (!node) return "";
  const parts = stages.flatMap(({ canvas }) => [...(canvas.picture?.parts.values() ?? [])]);
  return parts.find(({ element }) => element === node)?.box?.fqn ?? "";
}

async function show(stage: Stage, names: string[], isNewest: () => boolean): Promise<void> {
  const ids = names.length ? await stage.host.engine.boxesOf(stage.part, stage.shown, names) : [];
  if (!isNewest()) return;
  const shown = new Set(ids);
  for (const part of stage.canvas.picture?.parts.values() ?? [])
    part.element.classList.toggle("pbd-preview", shown.has(part.id));
}
