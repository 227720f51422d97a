/**
 * The workbench: a frame with five steps around the diagram, and the code that does the same.
 *
 * Everything shown comes from traits that Python sets, and every click asks Python for an action; nothing is decided
 * here.
 */

import { make } from "../render/dom";
import { adopt } from "./adopt";
import { codeView } from "./code";
import { Frame } from "./frame";
import type { Cleanups } from "./live";
import type { BenchModel } from "./model";

function render({ model, el }: { model: BenchModel; el: HTMLElement }): () => void {
  const ends: Cleanups = [];
  if (model.get("part") === "code") {
    const code = make("div", { class: "pbb pbb-codes" }, codeView(model, ends));
    code.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook's shortcuts must not run here
    el.append(code);
  } else {
    const frame = new Frame(model, ends).element;
    el.append(frame);
    adopt(model, frame, ends);
  }
  return () => {
    for (const end of ends) end();
  };
}

export default { render };
