/** What the JupyterLab extension leaves for widgets in the same page. */

import type { Assets, DiagramView } from "./render";

export interface Shared {
  assets?: Assets;
  adopt?: (view: DiagramView) => () => void;
  /** Opens a line of the user's code; `from` is the element that asks. */
  openSource?: (file: string, line: number, code: string, from: HTMLElement) => void;
  /** Puts code into a cell below the one that `from` is in. */
  insertBelow?: (code: string, from: HTMLElement) => void;
  layout?: Promise<string>;
}

export const PLACE = Symbol.for("prepbench");

/** Looked up at each use: the extension may come after the first widget. */
export function sharedNow(): Shared {
  const page = globalThis as Record<symbol, Shared | undefined>;
  page[PLACE] ??= {};
  return page[PLACE];
}
