/** A layer under the pointer is shown in the diagram, and a box of the diagram in the table. */

import { HOVERED, PREVIEW } from "../render/preview";
import type { Cleanups } from "./live";

/** Joins a table to the diagrams in the same box; `namesAt` gives the layers of the row that holds an element. */
export function previewRows(table: HTMLElement, namesAt: (target: Element) => string[], ends: Cleanups): void {
  let shown = "";
  const show = (names: string[]): void => {
    if (names.join("\n") === shown) return;
    shown = names.join("\n");
    for (const diagram of table.closest(".pbb-box")?.querySelectorAll(".pbd") ?? [])
      diagram.dispatchEvent(new CustomEvent(PREVIEW, { detail: names }));
  };
  table.addEventListener("pointerover", ({ target }) => show(namesAt(target as Element)));
  table.addEventListener("pointerleave", () => show([]));
  const hovered = (event: Event): void => {
    const box = table.closest(".pbb-box");
    if (!box?.contains(event.target as Node)) return;
    const name = (event as CustomEvent<string>).detail;
    for (const row of table.querySelectorAll<HTMLElement>("[data-fqn]"))
      row.classList.toggle("pbb-preview", name !== "" && row.dataset["fqn"] === name);
  };
  document.addEventListener(HOVERED, hovered);
  ends.push(() => document.removeEventListener(HOVERED, hovered));
}
