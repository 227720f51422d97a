/**
 * The workbench: a frame with five steps around the diagram, and the code that does the same.
 *
 * Everything shown comes from traits that Python sets, and every click asks Python for an action; nothing is decided
 * here.
 */

import { adopt } from "./adopt";
import { Frame } from "./frame";
import type { Cleanups } from "./live";
import type { BenchModel } from "./model";

function render({ model, el }: { model: BenchModel; el: HTMLElement }): () => void {
  const ends: Cleanups = [];
  const frame = new Frame(model, ends).element;
  el.append(frame);
  adopt(model, frame, ends);
  return () => {
    for (const end of ends) end();
  };
}

export default { render };
