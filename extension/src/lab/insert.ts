import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { Widget } from "@lumino/widgets";

import { isNotebook } from "./widgets";

/** What is needed of an open notebook to write a cell into it. */
interface Written {
  readonly model: { readonly sharedModel: { insertCell(index: number, cell: object): unknown } } | null;
  readonly widgets: readonly { readonly node: HTMLElement }[];
  activeCellIndex: number;
  scrollToItem?(index: number, align?: string): Promise<void>;
}

/** Makes the function that puts code into a new cell: below the cell that asks, or else below the active one. */
export function cellInserter(app: JupyterFrontEnd): (code: string, from: HTMLElement) => void {
  return (code, from) => {
    const main = [...app.shell.widgets("main")];
    const owner = main.find((widget) => widget.node.contains(from) && isNotebook(widget)) ?? main.find(isNotebook);
    const notebook = writtenIn(owner);
    if (!owner || !notebook) return;
    const asking = notebook.widgets.findIndex(({ node }) => node.contains(from));
    insertCell(owner, (asking >= 0 ? asking : notebook.activeCellIndex) + 1, code);
  };
}

/** Puts code into a new cell at a place of an open notebook, and makes that the active one. */
export function insertCell(owner: Widget, at: number, code: string): void {
  const notebook = writtenIn(owner);
  if (!notebook?.model) return;
  notebook.model.sharedModel.insertCell(at, { cell_type: "code", source: code, metadata: { trusted: true } });
  notebook.activeCellIndex = at;
  void notebook.scrollToItem?.(at, "smart");
}

function writtenIn(owner: Widget | undefined): Written | undefined {
  return (owner as (Widget & { content?: Written }) | undefined)?.content;
}
