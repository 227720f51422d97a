/** The step in which a model is trained back before it is compiled: what to do, the curve, a stop that keeps the best. */

import { make } from "../render/dom";
import { actButton } from "./buttons";
import { curveSvg } from "./curve";
import { DIM } from "./dim";
import { type Cleanups, listen, live } from "./live";
import { cardButton } from "./message";
import { act, type BenchModel } from "./model";
import { outcomeView } from "./outcome";

/** The second press of a double click asks for nothing new. */
const DOUBLE_CLICK_MS = 600;

export class RecoverStep {
  readonly element: HTMLElement;
  private readonly steps = box("Steps at most", "numeric");
  private readonly rate = box("Learning rate", "decimal");
  private readonly distill = make("input", { type: "checkbox", "aria-label": "Learn from the float model, too" });
  private started = Number.NEGATIVE_INFINITY;
  private readonly kept = make("select", { "aria-label": "Keep the weights with the best" });
  private readonly curve = make("div", { class: "pbb-curve" });
  private readonly said = make("p", { role: "status", class: "pbb-dim" });

  constructor(
    private readonly model: BenchModel,
    ends: Cleanups,
  ) {
    this.fill();
    this.element = make(
      "div",
      { class: "pbb-recover" },
      make("p", {}, "A short training brings back what rounding and pruning cost. Its result becomes a run."),
      this.form(ends),
      outcomeView(model, "recover", ends),
      live(model, ["running", "stage", "cancelling"], () => this.stopLine(), ends),
      this.curve,
      this.said,
    );
    listen(model, ["recovery"], () => this.follow(), ends);
    listen(model, ["training"], () => this.draw(), ends);
    this.draw();
  }

  private form(ends: Cleanups): HTMLElement {
    const fields = [this.steps, this.rate, this.kept].map((control) => {
      const name = make("span", { class: "pbb-field-name" }, control.getAttribute("aria-label") ?? "");
      return make("label", { class: "pbb-field" }, name, control);
    });
    const title = "The outputs of the float model are a goal beside the labels; without labels they are the only one";
    const teacher = make("label", { class: "pbb-switch", title }, this.distill, " Learn from the float model, too");
    const submit = (event: Event): void => {
      event.preventDefault();
      this.start();
    };
    const start = live(this.model, ["recovery", "is_queued", "running"], () => this.startLine(), ends);
    return make(
      "form",
      { class: "pbb-recover-form", submit },
      make("div", { class: "pbb-fields" }, ...fields),
      teacher,
      start,
    );
  }

  private startLine(): HTMLElement {
    const { unavailable, repairs, on, said, steps } = this.model.get("recovery");
    const queued = on && this.model.get("is_queued");
    const words = this.model.get("running") && !queued ? "Train back after what runs" : "Train back and compile";
    const title = unavailable || (queued ? "A run with these settings goes on or waits" : "");
    const button = make("button", { type: "submit", class: "pbb-primary", disabled: unavailable !== "", title }, words);
    const off = actButton(this.model, "no_training", "Compile without training", {
      title: `Each compile trains for ${steps} steps now, as the code says`,
    });
    const note = make("span", DIM, unavailable || said);
    const more = repairs.map((each) => cardButton(this.model, each));
    return make("div", { class: "pbb-line" }, button, ...(on ? [off] : []), note, ...more);
  }

  /** The button keeps its place, so that nothing moves when a training begins or ends. */
  private stopLine(): HTMLElement {
    const title = "End the training, and compile the best weights so far. Cancel compiles nothing.";
    const trains = this.model.get("running") && this.model.get("stage").startsWith("Training back");
    const style = trains ? "" : "visibility: hidden";
    const more = { title, style, disabled: !trains || this.model.get("cancelling") };
    return make("div", { class: "pbb-line" }, actButton(this.model, "stop_training", "Stop and keep the best", more));
  }

  private start(): void {
    const again = performance.now() - this.started < DOUBLE_CLICK_MS;
    if (this.model.get("recovery").unavailable || again) return;
    this.started = performance.now();
    const settings = { distill: this.distill.checked, by_metric: this.kept.value === "metric" };
    act(this.model, "train_back", {
      steps: this.steps.value,
      learning_rate: this.rate.value,
      ...settings,
    });
  }

  /** Shows the choices of Python, unless somebody types here. */
  private follow(): void {
    if (!this.element.contains(document.activeElement)) this.fill();
  }

  private fill(): void {
    const { steps, learning_rate: rate, distill, by_metric: byMetric, metric } = this.model.get("recovery");
    this.steps.value = String(steps);
    this.rate.value = String(rate);
    this.distill.checked = distill;
    const choices = [...(metric ? [["metric", metric] as const] : []), ["loss", "loss"] as const];
    this.kept.replaceChildren(...choices.map(([value, title]) => make("option", { value }, title)));
    this.kept.value = metric && byMetric ? "metric" : "loss";
  }

  private draw(): void {
    const training = this.model.get("training");
    const made = curveSvg(training);
    this.curve.replaceChildren(...(made ? [made] : []));
    this.curve.hidden = made === null;
    const { said, total, step } = training;
    this.said.textContent = said || (total ? `${step} of ${total} steps.` : "");
  }
}

function box(title: string, inputmode: string): HTMLInputElement {
  return make("input", { type: "text", inputmode, size: 8, "aria-label": title });
}
