/** A diagram: one pane, or two side by side, around the same documents. */

import type { Overlay } from "../generated/document";
import type { Assets, DiagramView, Options, Source, TreeRow } from "./api";
import type { View } from "./boxes";
import { make } from "./dom";
import type { Summary } from "./engine";
import { Pane } from "./pane";
import { joinPreviews } from "./preview";
import { EngineClient } from "./workers";

export type { Assets, DiagramView, Options, Source, TreeRow } from "./api";
export type { View } from "./boxes";

/** A diagram that shows nothing until `load` is called. */
export function createDiagram(assets: Assets, options: Options = {}): Diagram {
  return new Diagram(assets, options);
}

export class Diagram implements DiagramView {
  readonly element = make("div", { class: "pbd", "data-prepbench-diagram": "" });
  selected: readonly string[] = [];
  overlay = "";
  private engine: EngineClient | null = null;
  private panes: Pane[] = [];
  private summary: Summary | null = null;
  private ticket = 0;
  private coloured: string[] = [];
  private readonly selectListeners = new Set<(fqns: readonly string[]) => void>();
  private readonly loadListeners = new Set<() => void>();
  private readonly viewListeners = new Set<() => void>();
  private before: HTMLElement | null = null;
  private drawn = false;

  constructor(
    private readonly assets: Assets,
    private options: Options,
  ) {
    this.colour();
    joinPreviews(this.element, () => this.panes.map(({ stage }) => stage));
  }

  async load(source: Source, keepsBefore = false): Promise<void> {
    const ticket = ++this.ticket;
    const last = this.panes.length === 1 && this.drawn ? this.panes[0]!.element : null;
    this.close();
    if (last) {
      this.settle();
      this.before = last;
      last.classList.add("pbd-before"); // where it is: a picture that is moved loses its place
      last.inert = true;
    } else if (!this.before)
      this.element.replaceChildren(make("p", { class: "pbd-note", role: "status" }, "Reading the model …"));
    this.drawn = false;
    try {
      const engine = new EngineClient(this.assets);
      this.engine = engine;
      const summary = await engine.load(source);
      if (ticket !== this.ticket) return;
      this.summary = summary;
      this.build(summary);
      const [first, ...others] = this.panes;
      await first!.start();
      await Promise.all(others.map((pane) => pane.start(first!.open))); // side by side, the same modules are open
      if (ticket === this.ticket) this.drawn = true;
      if (ticket === this.ticket && !keepsBefore) this.settle();
      if (ticket === this.ticket) for (const listener of this.loadListeners) listener();
    } catch (error) {
      if (ticket === this.ticket) this.refuse(error);
    }
  }

  /** Takes away the picture of the document before, which stays in view until the new one is whole. */
  settle(): void {
    this.before?.remove();
    this.before = null;
  }

  setOptions(options: Options): void {
    const depth = this.options.depth;
    this.options = { ...this.options, ...options };
    this.colour();
    if (options.depth !== undefined && options.depth !== depth)
      for (const pane of this.panes) void pane.stage.show({ ...pane.view, open: null, depth: options.depth });
  }

  tree(): Promise<TreeRow[]> {
    return this.engine && this.panes[0] ? this.engine.tree(this.panes[0].part) : Promise.resolve([]);
  }

  async reveal(fqn: string): Promise<void> {
    await Promise.all(this.panes.map((pane, i) => pane.selection.reveal(fqn, i === 0)));
  }

  /** Selects modules where they can be seen; listeners are not told. */
  async select(fqns: readonly string[]): Promise<void> {
    this.selected = [...fqns];
    if (fqns.length === 1) await Promise.all(this.panes.map((pane) => pane.selection.reveal(fqns[0]!, false)));
    else await Promise.all(this.panes.map((pane) => pane.selection.chooseNames(fqns)));
  }

  /** The view of the first pane. */
  get view(): View | null {
    return this.panes[0]?.view ?? null;
  }

  async show(view: Partial<View>): Promise<void> {
    await Promise.all(this.panes.map((pane) => pane.stage.show({ ...pane.view, ...view })));
  }

  async setOverlays(overlays: Overlay[], active: string): Promise<void> {
    if (!this.engine || !this.summary) return;
    this.summary = await this.engine.setOverlays(overlays);
    await this.colourBy(active);
  }

  async colourBy(name: string): Promise<void> {
    this.overlay = name;
    await Promise.all(this.panes.map((pane) => pane.colourBy(name)));
  }

  onSelect(listener: (fqns: readonly string[]) => void): () => void {
    this.selectListeners.add(listener);
    return () => this.selectListeners.delete(listener);
  }

  onLoad(listener: () => void): () => void {
    this.loadListeners.add(listener);
    return () => this.loadListeners.delete(listener);
  }

  /** Calls back whenever another view or overlay is shown. */
  onView(listener: () => void): () => void {
    this.viewListeners.add(listener);
    return () => this.viewListeners.delete(listener);
  }

  dispose(): void {
    this.ticket++;
    this.close();
    this.element.remove();
  }

  private build(summary: Summary): void {
    const self = this;
    const host = {
      engine: this.engine!,
      assets: this.assets,
      get options() {
        return self.options;
      },
      get summary() {
        return self.summary!;
      },
      selected: (pane: Pane, fqns: readonly string[]) => this.wasSelected(pane, fqns),
      viewed: (pane: Pane) => {
        for (const other of this.panes) if (other !== pane) void other.follow(pane.view);
        this.tellViewed();
      },
      overlaid: (name: string) => void this.colourBy(name).then(() => this.tellViewed()),
    };
    const parts = summary.documents.map((_, i) => i);
    this.panes =
      summary.arrangement === "compare" && parts.length > 1
        ? parts.map((part) => new Pane(host, part, [part]))
        : [new Pane(host, 0, parts)];
    this.overlay = summary.overlay;
    for (const pane of this.panes) pane.stage.overlay = this.overlay;
    for (const child of [...this.element.children]) if (child !== this.before) child.remove();
    this.element.prepend(...this.panes.map((pane) => pane.element));
    this.element.classList.toggle("pbd-pair", this.panes.length > 1);
  }

  private wasSelected(pane: Pane, fqns: readonly string[]): void {
    this.selected = fqns;
    for (const other of this.panes) if (other !== pane) void other.selection.chooseNames(fqns);
    for (const listener of this.selectListeners) listener(fqns);
  }

  private tellViewed(): void {
    for (const listener of this.viewListeners) listener();
  }

  private refuse(error: unknown): void {
    const text = error instanceof Error ? error.message : String(error);
    this.before = null;
    this.element.replaceChildren(
      make("div", { class: "pbd-note", role: "alert" }, make("b", {}, "This diagram cannot be shown. "), text),
    );
  }

  private colour(): void {
    for (const name of this.coloured) this.element.style.removeProperty(name);
    this.coloured = [];
    for (const [name, { light, dark }] of Object.entries(this.options.colours ?? {})) {
      if (!light && !dark) continue;
      this.coloured.push(`--pb-${name}`);
      this.element.style.setProperty(`--pb-${name}`, `light-dark(${light ?? dark}, ${dark ?? light})`);
    }
  }

  private close(): void {
    for (const pane of this.panes) pane.dispose();
    this.panes = [];
    this.summary = null;
    this.engine?.dispose();
    this.engine = null;
  }
}
