import type { JupyterFrontEnd } from "@jupyterlab/application";
import type { Widget } from "@lumino/widgets";

import type { Benches, Context } from "./benches";
import type { Diagrams } from "./registry";
import { isNotebook } from "./widgets";

/** Tells benches and diagrams that their kernel has ended; of one that is restarted, widgets hear themselves. */
export function watchKernels(shell: JupyterFrontEnd.IShell, benches: Benches, diagrams: Diagrams): void {
  const watched = new WeakSet<Context>();
  const notebooks = (): Widget[] => [...shell.widgets("main")].filter(isNotebook);
  const watch = (context: Context | null): void => {
    if (!context || watched.has(context)) return;
    watched.add(context);
    context.sessionContext.kernelChanged.connect((_, { newValue }) => {
      if (newValue !== null) return;
      const panels = notebooks().filter((panel) => contextOf(panel) === context);
      for (const panel of panels) for (const { lose } of diagrams.within(panel)) lose();
      for (const bench of benches.of(context)) bench.lose();
    });
  };
  diagrams.changed.connect(() =>
    queueMicrotask(() => {
      for (const panel of notebooks()) if (diagrams.within(panel).length) watch(contextOf(panel));
    }),
  );
  benches.changed.connect((_, bench) =>
    queueMicrotask(() => {
      const key = benches.outputOf(bench.element)?.key;
      if (key) watch(benches.contextOf(key));
    }),
  );
}

function contextOf(panel: Widget): Context | null {
  return (panel as { context?: Context }).context ?? null;
}
