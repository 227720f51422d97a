import type { CodeEditor } from "@jupyterlab/codeeditor";
import type { Widget } from "@lumino/widgets";

import { isNotebook } from "./widgets";

/** What is needed of a notebook's cell. */
export interface Cell {
  readonly model: {
    readonly type: string;
    readonly executionCount?: number | null;
    readonly trusted?: boolean;
    readonly sharedModel: { getSource(): string };
  };
  readonly node?: HTMLElement;
  readonly editor: CodeEditor.IEditor | null;
  readonly ready: Promise<void>;
}

/** What is needed of an open notebook. */
export interface Notebook {
  readonly widgets: readonly Cell[];
  activeCellIndex: number;
  mode: string;
  scrollToItem?(index: number, align?: string): Promise<void>;
}

/** The notebook in a widget, if it is one. */
export function notebookIn(widget: Widget | null): Notebook | null {
  if (!isNotebook(widget)) return null;
  const content = (widget as { content?: Partial<Notebook> } | null)?.content;
  return content && Array.isArray(content.widgets) && "activeCellIndex" in content ? (content as Notebook) : null;
}

/** Whether Python's name of a file means code without a file, such as a notebook's cell. */
export function isCell(file: string): boolean {
  return file === "notebook cell" || file.startsWith("<") || hashIn(file) !== null;
}

/** The index of the cell that a line is in; -1 if that is not certain. */
export function findCell(cells: readonly Cell[], file: string, line: number, code = ""): number {
  const sources = cells.map(({ model }) => (model.type === "code" ? model.sharedModel.getSource() : null));
  const hash = hashIn(file);
  if (hash !== null) return sources.findIndex((source) => source !== null && nameOfCell(source) === hash);
  const count = /^<ipython-input-(\d+)-/.exec(file)?.[1];
  if (count !== undefined) return cells.findIndex(({ model }) => model.executionCount === Number(count));
  if (code === "") return -1;
  return sources.findIndex((source) => source !== null && lineInEditor(source, line, code) > 0);
}

/**
 * The line of a cell's text that Python calls `line`, by its code where that is known; 0 if there is no such line.
 * IPython takes blank lines at the start away before it counts.
 */
export function lineInEditor(source: string, line: number, code = ""): number {
  const lines = source.split("\n");
  const blank = Math.max(
    lines.findIndex((text) => text.trim() !== ""),
    0,
  );
  if (code === "") return line + blank;
  return [line + blank, line].find((each) => lines[each - 1]?.trim() === code.trim()) ?? 0;
}

function hashIn(file: string): string | null {
  return /[\\/]ipykernel_\d+[\\/](\d+)\.py$/.exec(file)?.[1] ?? null;
}

const SEED = 0xc70f6907;
const MIX = 0x5bd1e995;

/** The number by which ipykernel names a cell's code: its MurmurHash2 (Austin Appleby, 32 bits). */
export function nameOfCell(code: string): string {
  const bytes = new TextEncoder().encode(code);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const whole = bytes.length & ~3;
  let hash = SEED ^ bytes.length;
  for (let at = 0; at < whole; at += 4) {
    let word = Math.imul(view.getUint32(at, true), MIX);
    word = Math.imul(word ^ (word >>> 24), MIX);
    hash = Math.imul(hash, MIX) ^ word;
  }
  const rest = bytes.subarray(whole);
  if (rest.length > 0) {
    hash ^= rest.reduce((word, byte, place) => word | (byte << (8 * place)), 0);
    hash = Math.imul(hash, MIX);
  }
  hash = Math.imul(hash ^ (hash >>> 13), MIX);
  return String((hash ^ (hash >>> 15)) >>> 0);
}
