/** Graphviz behind messages: `{id, dot}` in, `{id, result}` (SVG) or `{id, error}` out. The WASM is started with the worker. */

import { Graphviz } from "@hpcc-js/wasm-graphviz";

const graphviz = Graphviz.load();

self.onmessage = async (event: MessageEvent<{ id: number; dot: string }>): Promise<void> => {
  const { id, dot } = event.data;
  try {
    self.postMessage({ id, result: (await graphviz).layout(dot, "svg", "dot") });
  } catch (error) {
    self.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
  }
};
