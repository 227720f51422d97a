import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { Widget } from "@lumino/widgets";

import { notebookIn } from "./cells";
import { holds } from "./widgets";

/** Brings a diagram's widget into sight: its tab, and in a notebook its cell. */
export async function bringIntoSight(shell: JupyterFrontEnd.IShell, host: Widget): Promise<void> {
  const main = [...shell.widgets("main")].find((widget) => holds(widget, host));
  if (main && !main.isVisible) shell.activateById(main.id);
  const notebook = notebookIn(main ?? null);
  if (notebook && !host.node.isConnected) {
    const index = notebook.widgets.findIndex((cell) => holds(cell as unknown as Widget, host));
    if (index >= 0) await notebook.scrollToItem?.(index, "smart");
  }
  host.node.scrollIntoView({ block: "nearest" });
}
