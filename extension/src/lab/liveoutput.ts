import { MimeModel } from "@jupyterlab/rendermime";
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import type { Message } from "@lumino/messaging";
import { Panel, type Widget } from "@lumino/widgets";

import type { Diagrams } from "./registry";

const WIDGET_VIEW = "application/vnd.jupyter.widget-view+json";
const LOST = "Error displaying widget"; // what the widget's renderer says when its kernel is gone
const FAILED = ".jupyter-widgets-error-widget"; // in its place when the widget's script cannot run
const PATIENCE_MS = 3000;
const LOOK_EVERY_MS = 300;

/** Why an output shows what was saved: nothing of it was ever live, or what keeps the live view away. */
export type Why = "" | "gone" | "untrusted" | "forbidden" | "failed";

/** Whether this page's policy forbids scripts from texts, which all live widgets need (see anywidget). */
let isForbidden = false;
document.addEventListener("securitypolicyviolation", ({ blockedURI }) => {
  isForbidden ||= blockedURI.startsWith("blob");
});

/** Before the renderer of widgets, which registers with -10. */
export const BEFORE_WIDGETS = -20;

type Model = IRenderMime.IMimeModel;

/** The part of a registry that makes renderers; the notebook around an output has one that knows widgets. */
interface Renderers {
  createRenderer(mimeType: string): IRenderMime.IRenderer;
  getFactory(mimeType: string): unknown;
  readonly mimeTypes: readonly string[];
}

interface WidgetManager {
  readonly restoredStatus?: boolean;
  has_model?(id: string): boolean;
}

/**
 * An output with a document of ours: the live widget where its kernel has it, else what was saved.
 *
 * The notebook keeps the widget's id beside the document, not as a view: other readers would show an empty view in the
 * place of the picture.
 */
export abstract class LiveOutput extends Panel implements IRenderMime.IRenderer {
  constructor(
    protected readonly diagrams: Diagrams,
    private readonly mimeType: string,
  ) {
    super();
  }

  /** What all views of one output share; null before the first rendering. */
  get key(): object | null {
    return this.model;
  }

  async renderModel(model: Model): Promise<void> {
    const id = this.idIn(model);
    const isShown = this.live !== null && this.shownId === id && this.isTrusted === model.trusted;
    this.model = model;
    if (isShown || (id && !this.isAttached)) return;
    await this.render(model, id);
  }

  override dispose(): void {
    this.watch?.disconnect();
    window.clearTimeout(this.timer);
    super.dispose();
  }

  protected model: Model | null = null;

  /** Shows the document, and says why it is not live. Called again when the output changes. */
  protected abstract showSaved(data: unknown, why: Why): HTMLElement;

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.model && !this.isRendered) void this.render(this.model, this.idIn(this.model));
    this.diagrams.moved();
  }

  private async render(model: Model, id: string): Promise<void> {
    this.isRendered = true;
    this.shownId = id;
    this.isTrusted = model.trusted;
    this.watch?.disconnect();
    window.clearTimeout(this.timer);
    this.live?.dispose();
    this.live = null;
    const renderers = model.trusted && id ? renderersAround(this) : null;
    if (renderers === null) return this.giveBack();
    const live = renderers.createRenderer(WIDGET_VIEW);
    this.live = live;
    this.insertWidget(0, live);
    this.watch = new MutationObserver(() => this.choose());
    this.watch.observe(live.node, { childList: true, subtree: true });
    this.isLate = false;
    this.wait(renderers, renderers.getFactory(WIDGET_VIEW), Date.now() + PATIENCE_MS);
    const view = { version_major: 2, version_minor: 0, model_id: id };
    const gone = await isGone(live, id);
    if (this.live !== live) return; // another rendering has begun
    if (gone) this.isLate = true;
    else await live.renderModel(new MimeModel({ data: { [WIDGET_VIEW]: view }, trusted: true }));
    if (this.live === live) this.choose();
  }

  /**
   * Asks for another renderer once there is a better one: while a notebook opens, the one for widgets has no kernel yet,
   * and would wait for ever.
   */
  private wait(renderers: Renderers, factory: unknown, until: number): void {
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => {
      if (this.isLive || this.isDisposed || !this.model) return;
      if (renderers.getFactory(WIDGET_VIEW) !== factory) return void this.render(this.model, this.shownId);
      if (!this.isLate && Date.now() > until) {
        this.isLate = true;
        this.choose();
      }
      this.wait(renderers, factory, until);
    }, LOOK_EVERY_MS);
  }

  /**
   * The widget's renderer writes its error into the page, waits for ever, or is empty again when the widget was closed.
   * It may find the widget later.
   */
  private choose(): void {
    const node = this.live?.node;
    if (!node) return;
    const isEmpty = !node.childElementCount && (this.isLate || (node.textContent?.startsWith(LOST) ?? false));
    const isLost = isEmpty || this.isFailed;
    this.live?.setHidden(isLost);
    if (isLost) this.giveBack();
    else if (this.still) this.still.hidden = true;
    if (!this.isLive) return;
    this.isLate = true;
    this.keepIdOnly();
  }

  private get isLive(): boolean {
    return (this.live?.node.childElementCount ?? 0) > 0 && !this.isFailed;
  }

  private get isFailed(): boolean {
    return this.live?.node.querySelector(FAILED) !== null;
  }

  private get why(): Why {
    if (!this.shownId) return "";
    if (!this.model?.trusted) return "untrusted";
    if (isForbidden) return "forbidden";
    return this.live && this.isFailed ? "failed" : "gone";
  }

  private giveBack(): void {
    const shown = this.showSaved(this.model?.data[this.mimeType], this.why);
    if (shown !== this.still) this.node.append(shown);
    this.still = shown;
    shown.hidden = false;
  }

  private keepIdOnly(): void {
    const { model, mimeType } = this;
    if (!model?.data[WIDGET_VIEW]) return;
    const { [WIDGET_VIEW]: _, ...data } = model.data;
    model.setData({ data, metadata: { ...model.metadata, [mimeType]: { model_id: this.shownId } } });
  }

  /** The id of the widget in an output; "" without any. */
  private idIn({ data, metadata }: Model): string {
    const view = (data[WIDGET_VIEW] ?? metadata[this.mimeType]) as { model_id?: unknown } | undefined;
    return typeof view?.model_id === "string" ? view.model_id : "";
  }

  private isRendered = false;
  private isLate = false;
  private isTrusted = false;
  private shownId = "";
  private timer = 0;
  private live: IRenderMime.IRenderer | null = null;
  private still: HTMLElement | null = null;
  private watch: MutationObserver | null = null;
}

/**
 * Whether the kernel has no such widget any more. The renderer of widgets (jupyterlab_widgets 3.0) would find out, too,
 * and write an error to the console; its manager is private, and without it the renderer is asked.
 */
async function isGone(renderer: IRenderMime.IRenderer, id: string): Promise<boolean> {
  const { _manager } = renderer as { _manager?: { promise?: Promise<WidgetManager> } };
  const manager = await _manager?.promise;
  const has = (): boolean => manager?.has_model?.(id) ?? true;
  while (!has() && !manager?.restoredStatus && !renderer.isDisposed)
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
  return !has();
}

function renderersAround(widget: Widget): Renderers | null {
  for (let at: Widget | null = widget.parent; at !== null; at = at.parent) {
    const { rendermime } = at as { rendermime?: Renderers };
    if (rendermime?.mimeTypes.includes(WIDGET_VIEW)) return rendermime;
  }
  return null;
}
