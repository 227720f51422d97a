import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";

import type { Benches } from "./benches";
import { BenchView } from "./benchview";
import { BEFORE_WIDGETS, LiveOutput, type Why } from "./liveoutput";
import type { Diagrams } from "./registry";
import { BENCH_MIME_TYPE, checkBench } from "./saved";

const SAVED = "This is the bench as it was saved.";
const GONE = `${SAVED} Its controls need a kernel: run the cell again to use them.`;
const NOTES: Record<Why, string> = {
  "": GONE,
  gone: GONE,
  untrusted: `${SAVED} This notebook is not trusted: run the cell again to use the bench's controls.`,
  forbidden: `${SAVED} This page forbids scripts from blob: addresses, which the controls need.`,
  failed: `${SAVED} The live view could not start. The browser's console says why.`,
};

/** A bench in an output. */
export class BenchOutput extends LiveOutput {
  constructor(diagrams: Diagrams, benches: Benches) {
    super(diagrams, BENCH_MIME_TYPE);
    this.addClass("pbl-bench-output");
    benches.joinOutput(this);
  }

  /** Makes this what the notebook saves of the bench; what is shown stays as it is. */
  keep(still: Readonly<Record<string, unknown>>): void {
    const { model } = this;
    const isKept = Object.entries(still).every(
      ([type, data]) => JSON.stringify(model?.data[type]) === JSON.stringify(data),
    );
    if (!isKept) model?.setData({ data: { ...model.data, ...still } as IRenderMime.IMimeModel["data"] });
  }

  protected override showSaved(data: unknown, why: Why): HTMLElement {
    if (this.view && this.note === NOTES[why]) return this.view.element;
    this.view?.element.remove();
    this.note = NOTES[why];
    this.view = new BenchView(this, this.diagrams, this.note, null);
    try {
      void this.view.show(checkBench(data));
    } catch (error) {
      this.view.refuse(error);
    }
    return this.view.element;
  }

  private note = "";
  private view: BenchView | null = null;
}

/** Shows benches in outputs; where the notebook is not trusted, what was saved is shown and nothing is run. */
export function benchRendererFactory(diagrams: Diagrams, benches: Benches): IRenderMime.IRendererFactory {
  return {
    safe: true,
    mimeTypes: [BENCH_MIME_TYPE],
    defaultRank: BEFORE_WIDGETS,
    createRenderer: () => new BenchOutput(diagrams, benches),
  };
}
