import type { LivingBench, RunLine } from "../shared";
import { element } from "./widgets";

const AT_ONCE = 20;

/** What the list of runs can do. */
export interface RunActions {
  show(bench: LivingBench, run: RunLine): void;
  restore(bench: LivingBench, run: RunLine): void;
}

/** The runs of benches, the newest first; null if there are none. */
export function runList(benches: readonly LivingBench[], actions: RunActions): HTMLElement | null {
  const ran = benches.filter(({ runs }) => runs.length > 0);
  const count = ran.reduce((sum, { runs }) => sum + runs.length, 0);
  if (count === 0) return null;
  const whole = element("details", "pbl-runs");
  whole.open = true;
  whole.append(element("summary", "", count === 1 ? "1 run" : `${count} runs`));
  for (const bench of ran) {
    const list = element("ul");
    list.setAttribute("aria-label", `Runs of ${bench.title}`);
    list.append(
      ...[...bench.runs]
        .reverse()
        .slice(0, AT_ONCE)
        .map((run) => entry(bench, run, actions)),
    );
    const rest = bench.runs.length - AT_ONCE;
    if (rest > 0) list.append(element("li", "pbl-type", `and ${rest} more in the bench`));
    if (ran.length > 1) whole.append(element("div", "pbl-type", bench.title));
    whole.append(list);
  }
  return whole;
}

function entry(bench: LivingBench, run: RunLine, actions: RunActions): HTMLElement {
  const item = element("li", "pbl-run");
  const name = button("pbl-link", run.name, "Show it in the bench", () => actions.show(bench, run));
  if (run.shown) name.setAttribute("aria-current", "true");
  const restore = button("pbl-link", "Restore", "Make its choices the current ones", () => actions.restore(bench, run));
  restore.setAttribute("aria-label", `Restore ${run.name}`);
  const head = element("div", "pbl-run-head");
  head.append(name, restore);
  item.append(head);
  const figures = [run.score, run.p50 && `${run.p50} ms`].filter((text) => text && !text.startsWith("–")).join(" · ");
  if (run.error) item.append(element("div", "pbl-reason", `✕ ${run.error}`));
  else if (figures) item.append(element("div", "pbl-type", figures));
  if (run.stale.length) item.append(element("div", "pbl-remedy", `other choices: ${run.stale.join("; ")}`));
  return item;
}

function button(className: string, text: string, title: string, action: () => void): HTMLButtonElement {
  const made = element("button", className, text);
  made.type = "button";
  made.title = title;
  made.addEventListener("click", action);
  return made;
}
