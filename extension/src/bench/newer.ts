/** Says that the model's code has changed since it was captured, with the button that captures again. */

import { make } from "../render/dom";
import { actButton } from "./buttons";
import { type Cleanups, live } from "./live";
import type { BenchModel } from "./model";

export function newerNote(model: BenchModel, ends: Cleanups): HTMLElement {
  return live(
    model,
    ["newer_code", "running"],
    () => {
      const note = make("p", { class: "pbb-newer", role: "status" });
      const text = model.get("newer_code");
      if (!text) return note;
      const title = "Give the model's modules the newest definitions, keep their weights, and capture again";
      note.append(`${text} `, actButton(model, "again", "Capture again", { title, disabled: model.get("running") }));
      return note;
    },
    ends,
  );
}
