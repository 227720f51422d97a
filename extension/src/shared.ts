/** What the JupyterLab extension leaves for widgets in the same page. */

import type { Assets, DiagramView } from "./render";
import type { Offer } from "./render/offers";

export interface Shared {
  assets?: Assets;
  /** Takes in a diagram, with what tells it that its kernel has ended; returns the function that lets it go. */
  adopt?: (view: DiagramView, lose: () => void) => () => void;
  /** Opens a line of the user's code; `from` is the element that asks. */
  openSource?: (file: string, line: number, code: string, from: HTMLElement) => void;
  /** Puts code into a cell below the one that `from` is in. */
  insertBelow?: (code: string, from: HTMLElement) => void;
  /** Opens the output that `from` is in beside its notebook; only where there is room for it. */
  openBeside?: (from: HTMLElement) => void;
  /** Takes in a bench; returns the function that lets it go. */
  adoptBench?: (bench: LivingBench) => () => void;
  layout?: Promise<string>;
}

/** A bench in the page. */
export interface LivingBench {
  readonly element: HTMLElement;
  readonly title: string;
  /** Its runs, oldest first. */
  readonly runs: readonly RunLine[];
  /** Shows what a run made of the layers. */
  show(id: string): void;
  /** Makes the choices of a run the current ones. */
  restore(id: string): void;
  /** What can be done about a failing module. */
  offers(fqn: string): readonly Offer[];
  /** Tells it that its kernel has ended. */
  lose(): void;
  /** What an output keeps of the bench as it stands now, by MIME type. */
  still(): Promise<Record<string, unknown>>;
  /** Calls back when something changed that outputs keep; returns the function that ends that. */
  onChange(changed: () => void): () => void;
}

/** A run in one line. */
export interface RunLine {
  readonly id: string;
  readonly name: string;
  readonly score: string;
  readonly p50: string;
  readonly error: string;
  readonly shown: boolean;
  readonly stale: readonly string[];
}

export const PLACE = Symbol.for("prepbench");

/** Looked up at each use: the extension may come after the first widget. */
export function sharedNow(): Shared {
  const page = globalThis as Record<symbol, Shared | undefined>;
  page[PLACE] ??= {};
  return page[PLACE];
}
