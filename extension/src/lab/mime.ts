import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import type { Message } from "@lumino/messaging";
import { Widget } from "@lumino/widgets";

import type { DiagramView, Source } from "../render";
import type { Diagrams } from "./registry";

export const MIME_TYPE = "application/vnd.prepbench.graph+json";

/** An output with a diagram. */
export class DiagramOutput extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly diagrams: Diagrams) {
    super();
    this.addClass("pbl-output");
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    if (this.view === null) {
      this.view = this.diagrams.create(this);
      this.node.append(this.view.element);
    }
    await shown(this.view, sourceOf(model.data[MIME_TYPE]));
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.diagrams.moved();
  }

  private view: DiagramView | null = null;
}

/** Shows documents in outputs, also in those of notebooks that are not trusted: nothing in a document is run. */
export function rendererFactory(diagrams: Diagrams): IRenderMime.IRendererFactory {
  return { safe: true, mimeTypes: [MIME_TYPE], defaultRank: 0, createRenderer: () => new DiagramOutput(diagrams) };
}

/** Loads a document; one that cannot be read is told by the diagram itself. */
export async function shown(view: DiagramView, source: Source): Promise<void> {
  await view.load(source).catch(() => undefined);
}

function sourceOf(data: unknown): Source {
  return typeof data === "object" && data !== null ? data : String(data ?? "");
}
