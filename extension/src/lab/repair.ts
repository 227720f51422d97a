import type { JupyterFrontEnd } from "@jupyterlab/application";

import { notebookIn } from "./cells";
import { insertCell } from "./insert";

/** The button of an error's card that opens a bench on the call that failed. */

const BUTTON = ".prepbench-error .prepbench-repair";

/**
 * Puts the code into a cell below the card, which names the card's own cell, and runs it. In a notebook that nobody
 * trusts the code waits for a person who runs the cell: such a card may be made up.
 */
export function offerRepairs(app: JupyterFrontEnd): void {
  document.addEventListener("click", ({ target }) => {
    const button = target instanceof Element ? target.closest<HTMLElement>(BUTTON) : null;
    if (button) void repair(app, button);
  });
}

async function repair(app: JupyterFrontEnd, button: HTMLElement): Promise<void> {
  const owner = [...app.shell.widgets("main")].find(({ node }) => node.contains(button));
  const notebook = notebookIn(owner ?? null);
  const at = notebook?.widgets.findIndex(({ node }) => node?.contains(button)) ?? -1;
  const model = notebook?.widgets[at]?.model;
  if (!owner || !model) return;
  const cell = model.executionCount ?? "";
  const words = cell === "" ? "the call that failed last" : `the call that failed in cell [${cell}]`;
  insertCell(owner, at + 1, `import prepbench as pb\n\npb.Bench.of_error(${cell})  # on ${words}`);
  if (!model.trusted) return;
  app.shell.activateById(owner.id);
  await app.commands.execute("notebook:run-cell");
}
