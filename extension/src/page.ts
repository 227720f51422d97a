/** A page that stands alone: the diagram with everything that it needs inside. */

import engine from "engine-script";
import { fromBase64, packed, unzipped, workerOf } from "./blobs";
import { createDiagram, type Source } from "./render";

function data(id: string): string {
  return document.getElementById(id)?.textContent ?? "";
}

/** This page with another document in it. */
async function pageWith(source: Source): Promise<string> {
  const copy = document.documentElement.cloneNode(true) as HTMLElement;
  copy.querySelector("#diagram")!.replaceChildren();
  copy.querySelector("#document")!.textContent = await packed(source as string);
  return `<!doctype html>\n${copy.outerHTML}`;
}

let layout: Promise<string> | null = null;

const diagram = createDiagram({
  engine: () => workerOf(engine),
  layout: async () => {
    layout ??= unzipped(fromBase64(data("layout")));
    return workerOf(await layout);
  },
  page: pageWith,
});
document.getElementById("diagram")!.append(diagram.element);
Object.assign(globalThis, { prepbenchDiagram: diagram }); // for scripts of the page
void diagram.load(fromBase64(data("document")));
