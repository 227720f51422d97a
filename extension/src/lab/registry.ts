import { type ISignal, Signal } from "@lumino/signaling";
import { Widget } from "@lumino/widgets";
import type { DiagramView, Options } from "../render";
import { createDiagram } from "../render";
import { assets } from "./assets";
import type { Look } from "./settings";
import { holds } from "./widgets";

/** A diagram in the page and the widget that it is in. */
export interface Living {
  readonly view: DiagramView;
  readonly host: Widget;
  /** Tells it that its kernel has ended; nothing where it has none. */
  readonly lose: () => void;
}

/** Opens a source line; `host` is the diagram's widget, or an element of another front end. */
export type OpenSource = (file: string, line: number, host: Widget | HTMLElement, code?: string) => void;

/** All diagrams that are alive, in outputs and in tabs. */
export class Diagrams {
  constructor(private readonly openSource: OpenSource) {}

  /** Emitted when a diagram comes, goes or moves to another place. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emitted when a diagram has loaded a document. */
  get loaded(): ISignal<this, DiagramView> {
    return this._loaded;
  }

  /** Makes a diagram for a widget; it is disposed together with the widget. */
  create(host: Widget): DiagramView {
    const view = createDiagram(assets, this.look);
    this.join(view, host);
    host.disposed.connect(() => view.dispose());
    return view;
  }

  /** Takes in a diagram that somebody else made and disposes of; returns the function that lets it go. */
  adopt(view: DiagramView, lose: () => void): () => void {
    const host = new Widget({ node: view.element });
    this.join(view, host, lose);
    return () => host.dispose();
  }

  private join(view: DiagramView, host: Widget, lose = (): void => undefined): void {
    const living: Living = { view, host, lose };
    const openSource = (file: string, line: number, code: string): void => this.openSource(file, line, host, code);
    view.setOptions({ ...this.look, openSource });
    this.living.add(living);
    this.openers.set(view, openSource);
    for (const event of ["pointerdown", "focusin"]) {
      view.element.addEventListener(event, () => this.use(living), { capture: true });
    }
    view.onLoad(() => this._loaded.emit(view));
    host.disposed.connect(() => {
      this.living.delete(living);
      this._changed.emit();
    });
    this._changed.emit();
  }

  /** The diagrams in a widget, in the order of the page. */
  within(widget: Widget): Living[] {
    const found = [...this.living].filter(({ host }) => holds(widget, host));
    return found.sort((a, b) => (precedes(a.view.element, b.view.element) ? -1 : 1));
  }

  /** The one of these that was used last; without any use, the first. */
  lastUsed(among: readonly Living[]): Living | null {
    let best = among[0] ?? null;
    for (const living of among) {
      if (best && this.usedAt(living) > this.usedAt(best)) best = living;
    }
    return best;
  }

  use(living: Living): void {
    const previous = this.clock;
    if (this.uses.get(living.view) === previous) return;
    this.clock += 1;
    this.uses.set(living.view, this.clock);
    this._changed.emit();
  }

  /** Tells that a diagram was moved in the page. */
  moved(): void {
    this._changed.emit();
  }

  /** Applies settings to all diagrams, also to later ones. */
  setLook(look: Look): void {
    this.look = look;
    for (const { view } of this.living) view.setOptions({ ...look, openSource: this.openers.get(view) });
  }

  private usedAt(living: Living): number {
    return this.uses.get(living.view) ?? -1;
  }

  private look: Look = {};
  private clock = 0;
  private readonly living = new Set<Living>();
  private readonly uses = new WeakMap<DiagramView, number>();
  private readonly openers = new WeakMap<DiagramView, NonNullable<Options["openSource"]>>();
  private readonly _changed = new Signal<this, void>(this);
  private readonly _loaded = new Signal<this, DiagramView>(this);
}

function precedes(a: Node, b: Node): boolean {
  return (a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING) !== 0;
}
