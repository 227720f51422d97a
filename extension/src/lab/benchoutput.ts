import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import type { Message } from "@lumino/messaging";
import { Panel, type Widget } from "@lumino/widgets";

import { BenchView } from "./benchview";
import type { Diagrams } from "./registry";
import { BENCH_MIME_TYPE, checkBench } from "./saved";

const WIDGET_VIEW = "application/vnd.jupyter.widget-view+json";
const LOST = "Error displaying widget"; // what the widget's renderer says when its kernel is gone
const NOTE = "This is the bench as it was saved. Its controls need a kernel: run the cell again to use them.";
const BEFORE_WIDGETS = -20; // they register with -10

/** The part of a registry that makes renderers; the notebook around an output has one that knows widgets. */
interface Renderers {
  createRenderer(mimeType: string): IRenderMime.IRenderer;
  readonly mimeTypes: readonly string[];
}

/** A bench in an output: the live widget where its kernel has it, else the bench as it was saved. */
export class BenchOutput extends Panel implements IRenderMime.IRenderer {
  constructor(private readonly diagrams: Diagrams) {
    super();
    this.addClass("pbl-bench-output");
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.model = model;
    if (this.isAttached) await this.render(model);
  }

  override dispose(): void {
    this.watch?.disconnect();
    super.dispose();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.model && !this.isRendered) void this.render(this.model);
    this.diagrams.moved();
  }

  private async render(model: IRenderMime.IMimeModel): Promise<void> {
    this.isRendered = true;
    const renderers = model.trusted && model.data[WIDGET_VIEW] ? renderersAround(this) : null;
    if (renderers === null) return this.showSaved();
    this.live?.dispose();
    const live = renderers.createRenderer(WIDGET_VIEW);
    this.live = live;
    this.addWidget(live);
    this.watch?.disconnect();
    this.watch = new MutationObserver(() => this.choose());
    this.watch.observe(live.node, { childList: true, subtree: true, characterData: true });
    await live.renderModel(model);
    this.choose();
  }

  /** The widget's renderer writes its error into the page, and may find the widget later. */
  private choose(): void {
    const isLost = this.live?.node.textContent?.startsWith(LOST) ?? true;
    this.live?.setHidden(isLost);
    if (isLost) this.showSaved();
    if (this.saved) this.saved.element.hidden = !isLost;
  }

  private showSaved(): void {
    if (this.saved) return;
    this.saved = new BenchView(this, this.diagrams, NOTE, null);
    this.node.append(this.saved.element);
    try {
      void this.saved.show(checkBench(this.model?.data[BENCH_MIME_TYPE]));
    } catch (error) {
      this.saved.refuse(error);
    }
  }

  private model: IRenderMime.IMimeModel | null = null;
  private isRendered = false;
  private live: IRenderMime.IRenderer | null = null;
  private saved: BenchView | null = null;
  private watch: MutationObserver | null = null;
}

/** Shows benches in outputs; where the notebook is not trusted, what was saved is shown and nothing is run. */
export function benchRendererFactory(diagrams: Diagrams): IRenderMime.IRendererFactory {
  return {
    safe: true,
    mimeTypes: [BENCH_MIME_TYPE],
    defaultRank: BEFORE_WIDGETS,
    createRenderer: () => new BenchOutput(diagrams),
  };
}

function renderersAround(widget: Widget): Renderers | null {
  for (let at: Widget | null = widget.parent; at !== null; at = at.parent) {
    const { rendermime } = at as { rendermime?: Renderers };
    if (rendermime?.mimeTypes.includes(WIDGET_VIEW)) return rendermime;
  }
  return null;
}
