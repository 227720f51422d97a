import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { DocumentRegistry } from "@jupyterlab/docregistry";
import { type ISignal, Signal } from "@lumino/signaling";

import type { LivingBench } from "../shared";
import type { BenchOutput } from "./benchoutput";
import { isNotebook } from "./widgets";

/** An open notebook's file and kernel. */
export type Context = DocumentRegistry.IContext<DocumentRegistry.IModel>;

/** All benches that are alive in the page, and the outputs that they lie in. */
export class Benches {
  constructor(private readonly shell: JupyterFrontEnd.IShell) {}

  /** Emitted when a bench comes or goes, or when something of it changed. */
  get changed(): ISignal<this, LivingBench> {
    return this._changed;
  }

  /** Emitted when a bench has come and lies in the page. */
  get arrived(): ISignal<this, LivingBench> {
    return this._arrived;
  }

  /** Takes in an output until it is disposed. */
  joinOutput(output: BenchOutput): void {
    this.outputs.add(output);
    output.disposed.connect(() => this.outputs.delete(output));
  }

  /** Takes in a bench; returns the function that lets it go. */
  adopt(bench: LivingBench): () => void {
    this.living.add(bench);
    const changed = (): void => this._changed.emit(bench);
    const stop = bench.onChange(changed);
    changed();
    requestAnimationFrame(() => this.has(bench) && this._arrived.emit(bench));
    return () => {
      stop();
      this.living.delete(bench);
      changed();
    };
  }

  /** Whether a bench is still there. */
  has(bench: LivingBench): boolean {
    return this.living.has(bench);
  }

  /** The benches in a part of the page, in its order. */
  within(node: HTMLElement): LivingBench[] {
    const found = [...this.living].filter(({ element }) => node.contains(element));
    return found.sort((a, b) => (precedes(a.element, b.element) ? -1 : 1));
  }

  /** The bench that a diagram belongs to. */
  around(diagram: HTMLElement): LivingBench | null {
    const box = diagram.closest(".pbb-box");
    return [...this.living].find(({ element }) => box?.contains(element)) ?? null;
  }

  /** The output that an element lies in. */
  outputOf(element: HTMLElement): BenchOutput | null {
    for (const output of this.outputs) if (output.node.contains(element)) return output;
    return null;
  }

  /** The outputs that show one cell's output: in the cell, and in other views of it. */
  outputsOf(key: object): BenchOutput[] {
    return [...this.outputs].filter((output) => output.key === key);
  }

  /** The notebook that an output is of, also for a view of it somewhere else. */
  contextOf(key: object): Context | null {
    const outputs = this.outputsOf(key);
    const isOwner = (node: HTMLElement): boolean => outputs.some((output) => node.contains(output.node));
    const owner = [...this.shell.widgets("main")].find((widget) => isNotebook(widget) && isOwner(widget.node));
    return (owner as { context?: Context } | undefined)?.context ?? null;
  }

  /** The benches of a notebook, wherever they are shown. */
  of(context: Context): LivingBench[] {
    return [...this.living].filter(({ element }) => {
      const key = this.outputOf(element)?.key;
      return key && this.contextOf(key) === context;
    });
  }

  /** The outputs in a part of the page, in its order. */
  outputsWithin(node: HTMLElement): BenchOutput[] {
    const found = [...this.outputs].filter((output) => node.contains(output.node));
    return found.sort((a, b) => (precedes(a.node, b.node) ? -1 : 1));
  }

  private readonly living = new Set<LivingBench>();
  private readonly outputs = new Set<BenchOutput>();
  private readonly _changed = new Signal<this, LivingBench>(this);
  private readonly _arrived = new Signal<this, LivingBench>(this);
}

function precedes(a: Node, b: Node): boolean {
  return (a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING) !== 0;
}
