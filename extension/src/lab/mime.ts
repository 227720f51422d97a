import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";

import type { DiagramView, Source } from "../render";
import { BEFORE_WIDGETS, LiveOutput } from "./liveoutput";
import type { Diagrams } from "./registry";
import { element } from "./widgets";

export const MIME_TYPE = "application/vnd.prepbench.graph+json";

const NOTE = "No kernel: this is the diagram as it was saved. Run the cell again to use it from Python.";

/** A diagram in an output. */
export class DiagramOutput extends LiveOutput {
  constructor(diagrams: Diagrams) {
    super(diagrams, MIME_TYPE);
  }

  protected override showSaved(data: unknown, wasLive: boolean): HTMLElement {
    if (this.view === null) {
      this.view = this.diagrams.create(this);
      const frame = element("div", "pbl-output");
      frame.append(this.view.element);
      this.saved.append(this.note, frame);
    }
    this.note.textContent = wasLive ? NOTE : "";
    this.note.hidden = !wasLive;
    void shown(this.view, sourceOf(data));
    return this.saved;
  }

  private readonly saved = element("div", "pbl-diagram-output");
  private readonly note = element("p", "pbl-diagram-note");
  private view: DiagramView | null = null;
}

/** Shows documents in outputs, also in those of notebooks that are not trusted: nothing in a document is run. */
export function rendererFactory(diagrams: Diagrams): IRenderMime.IRendererFactory {
  return {
    safe: true,
    mimeTypes: [MIME_TYPE],
    defaultRank: BEFORE_WIDGETS,
    createRenderer: () => new DiagramOutput(diagrams),
  };
}

/** Loads a document; one that cannot be read is told by the diagram itself. */
export async function shown(view: DiagramView, source: Source): Promise<void> {
  await view.load(source).catch(() => undefined);
}

function sourceOf(data: unknown): Source {
  return typeof data === "object" && data !== null ? data : String(data ?? "");
}
