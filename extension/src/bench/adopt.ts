/** Makes a bench known to the page around it, such as JupyterLab, which shows its runs and keeps it in its output. */

import { unzipped } from "../blobs";
import { lose } from "../lost";
import { type LivingBench, sharedNow } from "../shared";
import { type Cleanups, listen, type Trait } from "./live";
import { act, type BenchModel, RUN_TRAITS, runsNow } from "./model";
import { offersOf } from "./offers";

const PATIENCE_MS = 120_000; // a kernel answers once its cell has ended
const KEPT: readonly Trait[] = [
  ...RUN_TRAITS,
  "title",
  "sentence",
  "failures",
  "assumptions",
  "axes",
  "rules",
  "planned",
  "applied",
  "columns",
  "base",
  "code",
  "difference",
];

export function adopt(model: BenchModel, element: HTMLElement, ends: Cleanups): void {
  const bench: LivingBench = {
    element,
    get title() {
      return model.get("title");
    },
    get runs() {
      return runsNow(model);
    },
    show: (id) => act(model, "show_run", { id }),
    restore: (id) => act(model, "restore_run", { id }),
    offers: (fqn) => offersOf(model, fqn),
    lose: () => lose(model),
    still: () => still(model),
    onChange: (changed) => {
      const leave: Cleanups = [];
      listen(model, KEPT, changed, leave);
      return () => {
        for (const end of leave) end();
      };
    },
  };
  const leave = sharedNow().adoptBench?.(bench);
  if (leave) ends.push(leave);
}

/** Asks Python for what an output keeps of the bench. */
async function still(model: BenchModel): Promise<Record<string, unknown>> {
  const data = await new Promise<Uint8Array>((resolve, reject) => {
    const answered = (message: { action?: string }, buffers: DataView[]): void => {
      if (message.action !== "still") return;
      stop();
      const [sent] = buffers;
      if (sent) resolve(new Uint8Array(sent.buffer, sent.byteOffset, sent.byteLength));
      else reject(new Error("Python sent nothing."));
    };
    const stop = (): void => {
      clearTimeout(timer);
      model.off("msg:custom", answered as never);
    };
    const timer = setTimeout(() => {
      stop();
      reject(new Error("The kernel did not answer."));
    }, PATIENCE_MS);
    model.on("msg:custom", answered as never);
    act(model, "still", {});
  });
  return JSON.parse(await unzipped(data));
}
