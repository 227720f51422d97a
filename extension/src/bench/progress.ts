/** One bar for the whole run: stage, elapsed and remaining time, the log. */

import type { RunStatus } from "../generated/widgets";
import { make } from "../render/dom";
import { actButton } from "./buttons";
import { type Cleanups, listen } from "./live";
import type { BenchModel } from "./model";
import { duration } from "./numbers";

const TRAITS = [
  "running",
  "cancelling",
  "stage",
  "done",
  "total",
  "fraction",
  "elapsed_s",
  "remaining_s",
  "turn",
  "about",
] as const;

/** The bar with its words for one kind of action; they are changed in place, so that nothing moves while it runs. */
export class ProgressView {
  readonly element: HTMLElement;
  private readonly bar = make("progress", { max: "1", "aria-label": "Progress of the run" });
  private readonly stage = make("span", { class: "pbb-stage", role: "status" });
  private readonly time = make("span", { class: "pbb-time" });
  private readonly cancel: HTMLButtonElement;
  private arrived = performance.now();

  constructor(
    private readonly model: BenchModel,
    private readonly about: RunStatus["about"],
    ends: Cleanups,
  ) {
    this.cancel = actButton(model, "cancel", "Cancel");
    this.cancel.addEventListener("click", () => this.cancelling());
    const line = make("div", { class: "pbb-line" }, this.stage, this.time, this.cancel);
    this.element = make("div", { class: "pbb-progress" }, this.bar, line);
    listen(model, TRAITS, () => this.update(), ends);
    const timer = setInterval(() => this.runs() && this.sayTime(), 1000);
    ends.push(() => clearInterval(timer));
    this.update();
  }

  private runs(): boolean {
    return this.model.get("running") && this.model.get("about") === this.about;
  }

  private update(): void {
    this.arrived = performance.now();
    const running = this.runs();
    this.element.classList.toggle("pbb-running", running);
    if (!running) return;
    this.cancel.disabled = this.model.get("cancelling");
    this.cancel.textContent = this.model.get("cancelling") ? "Cancelling …" : "Cancel";
    this.bar.value = Math.min(1, Math.max(0.01, this.model.get("fraction")));
    this.stage.textContent = this.stageText();
    this.sayTime();
  }

  private cancelling(): void {
    this.cancel.disabled = true;
    this.cancel.textContent = "Cancelling …";
  }

  private stageText(): string {
    const [stage, done, total] = [this.model.get("stage"), this.model.get("done"), this.model.get("total")];
    const turn = this.model.get("turn");
    return `${turn && `${turn} · `}${total > 1 ? `${stage} (${done} of ${total})` : stage || "Starting"}`;
  }

  private sayTime(): void {
    const since = (performance.now() - this.arrived) / 1000;
    const remaining = this.model.get("remaining_s");
    const rest = remaining < 0 ? "" : ` · about ${duration(Math.max(1, remaining - since))} left`;
    this.time.textContent = `${duration(this.model.get("elapsed_s") + since)}${rest}`;
  }
}

/** The lines of the log, folded; it stays at its end unless somebody scrolled up. */
export function logView(model: BenchModel, ends: Cleanups): HTMLElement {
  const text = make("pre", { tabindex: "0", role: "log", "aria-label": "Log of the runs" });
  const details = make("details", { class: "pbb-log", "data-name": "log" }, make("summary", {}, "Log"), text);
  const update = (): void => {
    const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 4;
    const lines = model.get("log");
    text.textContent = lines.length ? lines.join("\n") : "Nothing has run yet.";
    if (atEnd) text.scrollTop = text.scrollHeight;
  };
  details.addEventListener("toggle", () => {
    text.scrollTop = text.scrollHeight;
  });
  listen(model, ["log"], update, ends);
  update();
  return details;
}
