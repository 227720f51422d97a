/** Says that the kernel is gone, and what can be done without it. */

import { make } from "../render/dom";
import type { Cleanups } from "./live";
import { type BenchModel, UNSENT } from "./model";

const DISCONNECTED = ".jupyter-widgets-disconnected"; // around widgets whose kernel was restarted or ended
const TEXT =
  "The kernel of this bench was restarted or has ended, so its controls do nothing. What is shown stays: move in the " +
  "diagram, filter and sort the table, copy the code. Run the notebook's cells again for a bench that works.";

export function lostNote(model: BenchModel, ends: Cleanups): HTMLElement {
  const note = make("p", { class: "pbb-lost", role: "status" });
  const tell = (isLost: boolean): void => {
    note.textContent = isLost ? TEXT : "";
  };
  const look = (): void => queueMicrotask(() => tell(note.closest(DISCONNECTED) !== null));
  const unsent = (event: Event): void => {
    if ((event as CustomEvent<unknown>).detail === model) tell(true);
  };
  model.on("comm_live_update", look);
  addEventListener(UNSENT, unsent);
  ends.push(() => {
    model.off("comm_live_update", look);
    removeEventListener(UNSENT, unsent);
  });
  return note;
}
