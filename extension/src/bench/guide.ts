/**
 * The first time, once everything can be captured: where the model will run, what that may cost, and one primary button
 * a step up to a first result.
 */

import { make } from "../render/dom";
import { DIM } from "./dim";
import { type Cleanups, listen, live } from "./live";
import { GO } from "./message";
import { act, type BenchModel } from "./model";
import { type About, outcomeView } from "./outcome";
import { named, numberBox } from "./search";

type Limit = "loss" | "size" | "latency";
type Least = "latency" | "size" | "drop";

/** What a person does next; "" where nothing is to be said. */
export type Stage = "" | "ask" | "searching" | "choose" | "compile" | "compiling" | "done";

const DISMISSED = "prepbench-guide-dismissed";
const STEP_OF = { ask: 1, searching: 2, choose: 2, compile: 3, compiling: 3, done: 3 };
const AIMS: Record<Least, string> = { latency: "fastest", size: "smallest", drop: "most exact" };
const SEEN = ["steps", "runs", "search", "search_now", "layers", "running", "about", "message"] as const;

/** Where a bench stands that has no run yet, or whose first run the path itself has begun. */
export function stageOf(model: BenchModel, began = false): Stage {
  if (!model.get("layers").length) return "";
  if (began && model.get("running") && model.get("about") === "compile") return "compiling";
  if (model.get("runs").length) return began && model.get("message").about === "compile" ? "done" : "";
  const { is_searching: searching, used } = model.get("search_now");
  if (searching) return "searching";
  if (model.get("running")) return ""; // its own card says what goes on
  if (model.get("search").why) return used < 0 ? "choose" : "compile";
  // the cards of failures have their own buttons
  const { kind: said, about } = model.get("message");
  const fails = said === "error" && about === "compile" && !began;
  return fails || model.get("steps").some(({ name, kind }) => name === "capture" && kind === "bad") ? "" : "ask";
}

/** What a search makes least: the first of time and size that has no limit, else what is lost. */
export function leastOf(limits: Record<Limit, string>): Least {
  if (!limits.latency.trim()) return "latency";
  return limits.size.trim() ? "drop" : "size";
}

export class Guide {
  readonly element = make("section", {
    class: "pbb-guide",
    "aria-label": "First time",
  });
  /** Brings it back once it is dismissed; one for all time. */
  readonly back = make("button", { title: "Show the guided path", click: () => this.dismiss(false) });
  private readonly form: HTMLElement;
  private readonly line: HTMLElement;
  private isDismissed = dismissed();
  private began = false;

  constructor(
    private readonly model: BenchModel,
    private readonly ends: Cleanups,
  ) {
    const compile = (): HTMLElement => this.compileButton();
    this.form = questions(model, compile, () => this.showOutcomes(), ends);
    this.line = live(model, [...SEEN, "targets"], () => this.stepLine(), ends);
    const dismiss = make("button", { class: "pbb-dismiss", "aria-label": "Dismiss the guided path" }, "✕");
    dismiss.addEventListener("click", () => this.dismiss(true));
    this.back.textContent = "Guide";
    this.element.append(dismiss, this.line, this.form);
    this.element.addEventListener(GO, () => this.leave());
    listen(model, SEEN, () => this.update(), ends);
    this.update();
  }

  /** Whether it shows how such an action goes, or how it ended. */
  isTelling(about: About): boolean {
    const shows = !this.element.hidden && this.element.querySelector(".pbb-outcome") !== null;
    return shows && (about === "search" || about === "compile");
  }

  private update(): void {
    const { about, text } = this.model.get("message");
    if (text && about !== "compile") this.began = false;
    const stage = stageOf(this.model, this.began);
    const had = document.activeElement;
    this.form.hidden = stage !== "ask";
    this.element.hidden = stage === "" || this.isDismissed;
    this.back.hidden = stage === "" || !this.isDismissed;
    if (!this.element.contains(had) || had?.getClientRects().length) return;
    // the focus must not fall back to the start of the notebook
    const next = this.element.hidden ? null : this.line.querySelector<HTMLElement>("button:not(:disabled)");
    (next ?? this.element.closest<HTMLElement>("[role='tabpanel']"))?.focus({ preventScroll: true });
  }

  private stepLine(): HTMLElement {
    const stage = stageOf(this.model, this.began);
    const line = make("div", { class: "pbb-line" });
    if (!stage) return line;
    const [words, ...more] = this.next(stage);
    const count = make("span", DIM, `${STEP_OF[stage]} of 3`);
    line.append(count, make("b", { role: "status" }, words), ...more);
    return line;
  }

  /** What stands in the way or was found, the button that goes on, and more about it. */
  private next(stage: Exclude<Stage, "">): [string, ...HTMLElement[]] {
    const { model } = this;
    const { found, stops, stop, metric } = model.get("search");
    if (stage === "ask") return ["Where will it run, and what may it cost?"];
    if (stage === "searching") return ["Searching within these limits.", this.toSearch()];
    if (stage === "compile") return ["The settings are chosen: compile and compare them.", this.compileButton()];
    if (stage === "compiling") return ["Compiling and comparing."];
    if (stage === "done") return ["The first result. All six steps are open for more."];
    const own = stops[stop];
    const best = found[own?.best ?? -1];
    if (!own || !best) return ["No settings keep to these limits.", this.toSearch()];
    const button = primary("Use these settings", () => act(model, "use_candidate", { id: best.id }));
    const score = metric ? `${metric} ${best.score}` : best.score;
    return [
      `Best: ${best.name} on ${best.target}, ${score}, ${best.latency} ms, ${best.size} MB.`,
      button,
      this.toSearch(""),
      make("span", DIM, own.why),
    ];
  }

  private toSearch(style = "pbb-primary"): HTMLElement {
    const click = () => this.element.dispatchEvent(new CustomEvent(GO, { detail: "search", bubbles: true }));
    return make("button", { class: style, click }, "See the search");
  }

  private compileButton(): HTMLElement {
    return primary("Compile", () => {
      this.began = true;
      this.showOutcomes();
      act(this.model, "compile", {});
    });
  }

  /** Shows from now on, under the button that was pressed, how a search and a compile go and how they end. */
  private showOutcomes(): void {
    if (this.element.querySelector(".pbb-outcome")) return;
    const { model, ends } = this;
    this.element.append(outcomeView(model, "search", ends, true), outcomeView(model, "compile", ends));
  }

  /** A button of the first result leads to where it lies. */
  private leave(): void {
    if (stageOf(this.model, this.began) === "done") this.began = false;
    this.update();
  }

  private dismiss(now: boolean): void {
    this.isDismissed = now;
    keepDismissed(now);
    this.update();
    if (!now) this.element.querySelector<HTMLElement>("input:not(:disabled), .pbb-primary")?.focus();
  }
}

function primary(label: string, click: () => unknown): HTMLElement {
  return make("button", { class: "pbb-primary", click }, label);
}

/** Whether somebody has dismissed the path on this browser. A page without a storage, such as a frame, keeps nothing. */
function dismissed(): boolean {
  try {
    return DISMISSED in localStorage;
  } catch {
    return false;
  }
}

function keepDismissed(now: boolean): void {
  try {
    if (now) localStorage.setItem(DISMISSED, "yes");
    else localStorage.removeItem(DISMISSED);
  } catch {
    // it lasts as long as the page, then
  }
}

/** The questions, with one button that searches within the answers. */
function questions(model: BenchModel, compile: () => HTMLElement, searching: () => void, ends: Cleanups): HTMLElement {
  const metric = model.get("search").metric;
  const aim = make("span", { class: "pbb-dim", role: "status" });
  const boxes: Record<Limit, HTMLInputElement> = {
    loss: numberBox(metric ? `Loss of ${metric} at most` : "Quality at least, in dB", metric ? "0.01" : "30"),
    size: numberBox("Size at most, in MB", ""),
    latency: numberBox("Time of a call at most, in ms", ""),
  };
  const limits = (): Record<Limit, string> => ({
    loss: boxes.loss.value,
    size: boxes.size.value,
    latency: boxes.latency.value,
  });
  const tell = (): void => {
    aim.textContent = `Finds the ${AIMS[leastOf(limits())]} settings within these limits.`;
  };
  const submit = (event: Event): void => {
    event.preventDefault();
    if (model.get("search_now").unavailable) return; // and while a search goes on, nothing is asked
    const minimize = leastOf(limits());
    searching();
    act(model, "search", { minimize, ...limits(), [minimize === "drop" ? "loss" : minimize]: "" });
  };
  tell();
  return make(
    "form",
    { submit, input: tell, class: "pbb-stack", "aria-label": "Where it will run and what it may cost" },
    live(model, ["targets"], targetsView, ends),
    make("div", { class: "pbb-fields" }, ...Object.values(boxes).map(named)),
    make(
      "div",
      { class: "pbb-line" },
      live(model, ["search_now", "targets"], () => startView(model, compile), ends),
      aim,
    ),
  );
}

/** Targets that run here first; the others say what they lack. */
function targetsView(model: BenchModel): HTMLElement {
  const targets = model.get("targets");
  const ordered = [...targets].sort((one, other) => Number(!!one.unavailable) - Number(!!other.unavailable));
  const chips = ordered.map(({ name, chosen, unavailable }) => {
    const change = (): void => act(model, "set_target", { target: name, chosen: tick.checked });
    const tick = make("input", { type: "checkbox", disabled: unavailable !== "" && !chosen, change });
    tick.checked = chosen;
    const lack = unavailable ? [make("small", DIM, " not here")] : [];
    return make("label", { class: "pbb-switch", title: unavailable }, tick, ` ${name}`, ...lack);
  });
  return make("div", { class: "pbb-guide-targets", role: "group", "aria-label": "Where it will run" }, ...chips);
}

/** Where nothing can be searched for, a compile with the settings of now is the way to a first result. */
function startView(model: BenchModel, compile: () => HTMLElement): HTMLElement {
  const { unavailable } = model.get("search_now");
  const chosen = model.get("targets").some((target) => target.chosen);
  if (unavailable && chosen) {
    return make("div", { class: "pbb-line" }, compile(), make("span", DIM, `No search: ${unavailable}`));
  }
  return make("button", { type: "submit", class: "pbb-primary", disabled: !chosen }, "Find the best");
}
