/** What a host (JupyterLab, a widget, a page) gives to a diagram and gets from it. */

/** A document as JSON text, as gzipped JSON, or parsed: what `*.graph.json` files and our MIME type hold. */
export type Source = string | Uint8Array | object;

/** Where the scripts of the workers come from; hosts differ in how they ship them. */
export interface Assets {
  /** Reads documents and decides what is visible. */
  engine(): Worker;
  /** Graphviz; large, so it is fetched when the first diagram is drawn. */
  layout(): Worker | Promise<Worker>;
  /** The parts of a page that stands alone, for the export to HTML; without it that export is not offered. */
  page?(source: Source): Promise<string>;
}

export interface Options {
  /** Levels of modules that are open at first; 0 lets the diagram choose what stays readable. */
  depth?: number;
  /** How many boxes are drawn without asking. */
  limit?: number;
  /** Opens the user's file; without it source lines are shown but are no links. */
  openSource?: (file: string, line: number, code: string) => void;
  /** Colours that replace the palette's, by name, e.g. `{failed: {light: "#c00", dark: "#f66"}}`. */
  colours?: Record<string, { light?: string; dark?: string }>;
}

/** One module in the tree beside a diagram. */
export interface TreeRow {
  fqn: string;
  type: string;
  /** "traced", "failed", "leaf" or "unvisited". */
  status: string;
  depth: number;
  /** How many failed modules lie below it. */
  failed: number;
  /** The kind of its failure, e.g. "data-dependent branch"; "" without one. */
  reason: string;
  remedy: string;
  /** The user's line of its failure, if known. */
  source: { file: string; line: number; code: string } | null;
}

/** A diagram in a page. */
export interface DiagramView {
  readonly element: HTMLElement;
  /** Shows a document instead of what was shown; a document that cannot be read is told in the element. */
  /** With `keepsBefore`, the picture of the document before stays in view until `settle` is called. */
  load(source: Source, keepsBefore?: boolean): Promise<void>;
  settle(): void;
  setOptions(options: Options): void;
  /** The modules of the document in order; [] while nothing is loaded. */
  tree(): Promise<TreeRow[]>;
  /** Opens the way to a module or operation, selects it and brings it into view. */
  reveal(fqn: string): Promise<void>;
  /** Fully qualified names of what is selected. */
  readonly selected: readonly string[];
  /** Calls back with the selected names; returns a function that ends it. */
  onSelect(listener: (fqns: readonly string[]) => void): () => void;
  /** Calls back whenever a document has been loaded. */
  onLoad(listener: () => void): () => void;
  dispose(): void;
}
