import type { Benches, Context } from "./benches";

/** Tells benches that their kernel has ended; of one that is restarted, widgets hear themselves. */
export function watchKernels(benches: Benches): void {
  const watched = new WeakSet<Context>();
  const watch = (context: Context | null): void => {
    if (!context || watched.has(context)) return;
    watched.add(context);
    context.sessionContext.kernelChanged.connect((_, { newValue }) => {
      if (newValue === null) for (const bench of benches.of(context)) bench.lose();
    });
  };
  benches.changed.connect((_, bench) =>
    queueMicrotask(() => {
      const key = benches.outputOf(bench.element)?.key;
      if (key) watch(benches.contextOf(key));
    }),
  );
}
