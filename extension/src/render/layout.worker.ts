/** Graphviz behind messages: `{id, dot}` in, `{id, result}` (an SvgElement) or `{id, error}` out. The WASM is started with the worker. */

import { Graphviz } from "@hpcc-js/wasm-graphviz";
import { parseSvg } from "./svgtree";

const graphviz = Graphviz.load();

self.onmessage = async (event: MessageEvent<{ id: number; dot: string }>): Promise<void> => {
  const { id, dot } = event.data;
  try {
    self.postMessage({ id, result: parseSvg((await graphviz).layout(dot, "svg", "dot")) });
  } catch (error) {
    self.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
  }
};
