import { packed } from "../blobs";
import { fillPage } from "../fill";
import type { Assets, Source } from "../render";

/** The scripts of the workers and of exported pages, shipped beside the extension and fetched when they are needed. */
export const assets: Assets = {
  engine: () => start(new URL("../assets/engine.js", import.meta.url), "prepbench engine"),
  layout: () => start(new URL("../assets/layout.js", import.meta.url), "prepbench layout"),
  page,
};

function start(script: URL, name: string): Worker {
  return new Worker(script, { type: "module", name });
}

async function page(source: Source): Promise<string> {
  const [template, script, layout, style] = await Promise.all([
    text(new URL("../assets/page.html", import.meta.url)),
    text(new URL("../assets/page.js", import.meta.url)),
    text(new URL("../assets/layout.js", import.meta.url)),
    text(new URL("../assets/style.txt", import.meta.url)),
  ]);
  return fillPage(template, { document: await packed(source as string), layout: await packed(layout), script, style });
}

async function text(url: URL): Promise<string> {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url.pathname} could not be read (${answer.status}).`);
  return answer.text();
}
