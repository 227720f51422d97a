import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";

import type { DiagramView, Source } from "../render";
import { BEFORE_WIDGETS, LiveOutput, type Why } from "./liveoutput";
import type { Diagrams } from "./registry";
import { element } from "./widgets";

export const MIME_TYPE = "application/vnd.prepbench.graph+json";

const NOTES: Record<Why, string> = {
  "": "",
  gone: "No kernel has this diagram: it is shown as it was saved. Run the cell again to use it from Python.",
  untrusted:
    "This notebook is not trusted: the diagram is shown as it was saved. Run the cell again to use it from Python.",
  forbidden:
    "This page forbids scripts from blob: addresses, which live widgets need: the diagram is shown as it was saved, and " +
    "Python does not hear of what is selected.",
  failed: "The live view could not start: the diagram is shown as it was saved. The browser's console says why.",
};

/** A diagram in an output. */
export class DiagramOutput extends LiveOutput {
  constructor(diagrams: Diagrams) {
    super(diagrams, MIME_TYPE);
  }

  protected override showSaved(data: unknown, why: Why): HTMLElement {
    if (this.view === null) {
      this.view = this.diagrams.create(this);
      const frame = element("div", "pbl-output");
      frame.append(this.view.element);
      this.saved.append(this.note, frame);
    }
    this.note.textContent = NOTES[why];
    this.note.hidden = !why;
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
