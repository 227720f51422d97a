import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import type { Message } from "@lumino/messaging";
import { Panel, type Widget } from "@lumino/widgets";

import type { Benches } from "./benches";
import { BenchView } from "./benchview";
import type { Diagrams } from "./registry";
import { BENCH_MIME_TYPE, checkBench } from "./saved";

const WIDGET_VIEW = "application/vnd.jupyter.widget-view+json";
const LOST = "Error displaying widget"; // what the widget's renderer says when its kernel is gone
const NOTE = "This is the bench as it was saved. Its controls need a kernel: run the cell again to use them.";
const PATIENCE_MS = 3000;
const LOOK_EVERY_MS = 300;
const BEFORE_WIDGETS = -20; // they register with -10

/** The part of a registry that makes renderers; the notebook around an output has one that knows widgets. */
interface Renderers {
  createRenderer(mimeType: string): IRenderMime.IRenderer;
  getFactory(mimeType: string): unknown;
  readonly mimeTypes: readonly string[];
}

/** A bench in an output: the live widget where its kernel has it, else the bench as it was saved. */
export class BenchOutput extends Panel implements IRenderMime.IRenderer {
  constructor(
    private readonly diagrams: Diagrams,
    benches: Benches,
  ) {
    super();
    this.addClass("pbl-bench-output");
    benches.joinOutput(this);
  }

  /** What all views of one output share; null before the first rendering. */
  get key(): object | null {
    return this.model;
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const isShown = this.isLive && this.model?.trusted === model.trusted && idOf(this.model) === idOf(model);
    this.model = model;
    if (this.isAttached && !isShown) await this.render(model);
  }

  /** Makes this what the notebook saves of the bench; what is shown stays as it is. */
  keep(still: Readonly<Record<string, unknown>>): void {
    const { model } = this;
    const isKept = Object.entries(still).every(
      ([type, data]) => JSON.stringify(model?.data[type]) === JSON.stringify(data),
    );
    if (!isKept) model?.setData({ data: { ...model.data, ...still } as IRenderMime.IMimeModel["data"] });
  }

  override dispose(): void {
    this.watch?.disconnect();
    window.clearTimeout(this.timer);
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
    this.watch.observe(live.node, { childList: true });
    this.isLate = false;
    this.wait(renderers, renderers.getFactory(WIDGET_VIEW), Date.now() + PATIENCE_MS);
    await live.renderModel(model);
    this.choose();
  }

  /**
   * Asks for another renderer once there is a better one: while a notebook opens, the one for widgets has no kernel yet,
   * and would wait for ever.
   */
  private wait(renderers: Renderers, factory: unknown, until: number): void {
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      if (this.isLive || this.isDisposed || !this.model) return;
      if (renderers.getFactory(WIDGET_VIEW) !== factory) return void this.render(this.model);
      if (!this.isLate && Date.now() > until) {
        this.isLate = true;
        this.choose();
      }
      this.wait(renderers, factory, until);
    }, LOOK_EVERY_MS);
  }

  /** The widget's renderer writes its error into the page, or waits for ever; it may find the widget later. */
  private choose(): void {
    const node = this.live?.node;
    const isLost = !node?.childElementCount && (this.isLate || (node?.textContent?.startsWith(LOST) ?? true));
    this.isLive = (node?.childElementCount ?? 0) > 0;
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
  private isLive = false;
  private isLate = false;
  private timer = 0;
  private live: IRenderMime.IRenderer | null = null;
  private saved: BenchView | null = null;
  private watch: MutationObserver | null = null;
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

/** The id of the widget in an output. */
function idOf(model: IRenderMime.IMimeModel | null): unknown {
  return (model?.data[WIDGET_VIEW] as { model_id?: unknown } | undefined)?.model_id;
}

function renderersAround(widget: Widget): Renderers | null {
  for (let at: Widget | null = widget.parent; at !== null; at = at.parent) {
    const { rendermime } = at as { rendermime?: Renderers };
    if (rendermime?.mimeTypes.includes(WIDGET_VIEW)) return rendermime;
  }
  return null;
}
