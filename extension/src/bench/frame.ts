/** The frame: header, rail, the step that is shown, and a line that says what goes on. */

import { lostNote } from "../lost";
import { make } from "../render/dom";
import { axesStep } from "./axes";
import { BRUSHED } from "./brush";
import { captureStep } from "./capture";
import { codeView } from "./code";
import { controlsOf } from "./controls";
import { FullWindow } from "./fullwindow";
import { Guide } from "./guide";
import { headerView } from "./header";
import { Inspector } from "./inspector";
import { type Cleanups, live, REBUILD } from "./live";
import { cardLine, GO, type Goal } from "./message";
import { act, type BenchModel } from "./model";
import { newerNote } from "./newer";
import { notesView } from "./notes";
import { offerFixes } from "./offers";
import { type About, noticeView } from "./outcome";
import { Place } from "./place";
import { PrecisionStep } from "./precision";
import { Rail, type StepName } from "./rail";
import { RecoverStep } from "./recover";
import { COMPARED, ResultsStep } from "./results";
import { runStep } from "./run";
import { tellSight } from "./sight";

const LOST =
  "The kernel of this bench was restarted or has ended, so its controls do nothing. What is shown stays: move in the " +
  "diagram, filter and sort the table, copy the code. Run the notebook's cells again for a bench that works.";

let frames = 0;

/** Where an action has its button. */
const STEP_OF: Record<About, StepName | null> = {
  "": null,
  capture: "capture",
  compile: "run",
  search: "run",
  recover: "recover",
  layers: "precision",
  samples: "results",
  export: "results",
};

export class Frame {
  readonly element = make("div", { class: "pbb" });
  private readonly id = `pbb-${++frames}`;
  private readonly panel = make("div", { class: "pbb-step", role: "tabpanel", id: `${this.id}-step`, tabindex: "-1" });
  private readonly steps = new Map<StepName, HTMLElement>();
  private readonly rail: Rail;
  private readonly place: Place;
  private readonly full: FullWindow;
  private readonly foot: HTMLElement;
  private readonly inspector: Inspector;
  private readonly guide: Guide;
  private step: StepName | null = null;
  private precision: PrecisionStep | null = null;

  constructor(
    private readonly model: BenchModel,
    private readonly ends: Cleanups,
  ) {
    this.full = new FullWindow(ends);
    const whole = this.full.button;
    this.guide = new Guide(model, ends);
    const guide = this.guide.back;
    const events = { code: () => this.openCode(), report: () => this.turnTo("results"), guide, whole };
    const traits = ["title", "sentence", "can_undo", "can_redo"] as const;
    const head = live(model, traits, () => headerView(model, events), ends);
    this.rail = new Rail(model, this.id, (name) => this.turnTo(name), ends);
    this.foot = live(model, ["running", "stage", "turn", "about", "message"], () => this.footer(), ends);
    this.foot.classList.add("pbb-foot");
    this.panel.append(this.guide.element, noticeView(model, ends));
    this.inspector = new Inspector(model, ends);
    const lost = lostNote(model, LOST, "pbb-lost", ends, controlsOf(this.element, ends));
    const notes = [notesView(model, ends), lost, newerNote(model, ends)];
    this.element.append(make("div", { class: "pbb-head" }, head, ...notes));
    this.place = new Place(
      this.element,
      (id) => act(model, "restore_run", { id }),
      (box) => {
        this.full.join(box);
        offerFixes(model, box, ends);
        tellSight(model, box, ends);
        box.addEventListener(BRUSHED, (event) => this.brushed((event as CustomEvent<readonly string[]>).detail));
      },
    );
    this.element.append(this.rail.element, this.place.strip, this.place.splitter, this.panel, this.foot);
    this.element.append(make("div", { class: "pbb-codes" }, codeView(model, ends)));
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener(GO, (event) => this.go((event as CustomEvent<Goal>).detail));
    ends.push(() => this.place.dispose());
    this.turnTo(this.firstStep());
  }

  private turnTo(name: StepName): void {
    const shown = this.stepOf(name);
    for (const step of this.steps.values()) step.hidden = step !== shown;
    this.panel.dataset["shows"] = name;
    this.step = name;
    this.foot.dispatchEvent(new Event(REBUILD));
    this.panel.setAttribute("aria-labelledby", `${this.id}-${name}`);
    this.rail.turnTo(name);
    this.place.showStep(name);
    if (name === "precision") {
      this.precision?.shown();
      this.precision?.place(this.inspector.element);
    } else this.panel.append(this.inspector.element); // below what the step itself says
  }

  private stepOf(name: StepName): HTMLElement {
    let step = this.steps.get(name);
    if (!step) {
      step = this.make(name);
      step.hidden = true;
      this.steps.set(name, step);
      this.panel.append(step);
    }
    return step;
  }

  /** Selects layers that a chart tells, also while another step is shown. */
  private brushed(names: readonly string[]): void {
    this.stepOf("precision");
    this.precision?.selectLayers(names);
  }

  private make(name: StepName): HTMLElement {
    const { model, ends } = this;
    if (name === "capture") return captureStep(model, ends);
    if (name === "axes") return axesStep(model, ends);
    if (name === "run") return runStep(model, ends);
    if (name === "recover") return new RecoverStep(model, ends).element;
    if (name === "results") return new ResultsStep(model, ends).element;
    this.precision = new PrecisionStep(model, ends, (fqn) => this.inspector.open(fqn));
    return this.precision.element;
  }

  /** Where something is wrong, or an action has failed, or else the layers. */
  private firstStep(): StepName {
    const { kind: said, about } = this.model.get("message");
    const failed = said === "error" ? STEP_OF[about] : null;
    return this.model.get("steps").find(({ kind }) => kind === "bad")?.name ?? failed ?? "precision";
  }

  private openCode(): void {
    const code = this.place.find<HTMLDetailsElement>(".pbb-code");
    if (!code) return;
    code.open = !code.open;
    if (!code.open) return;
    code.scrollIntoView({ block: "nearest" });
    code.querySelector("summary")?.focus();
  }

  /** Goes where a card's button leads. */
  private go(goal: Goal): void {
    if (goal === "code") {
      this.openCode();
      return;
    }
    if (goal === "run") {
      this.turnTo("run");
      this.panel.querySelector("[data-about='compile']")?.scrollIntoView({ block: "nearest" });
      return;
    }
    if (goal === "search") {
      this.turnTo("run");
      const search = this.panel.querySelector<HTMLElement>(".pbb-search");
      search?.scrollIntoView({ block: "nearest" });
      search?.querySelector<HTMLElement>("select")?.focus({ preventScroll: true });
      return;
    }
    this.turnTo("results");
    if (goal === "compare") this.panel.querySelector(".pbb-results")?.dispatchEvent(new Event(COMPARED));
    const part = this.panel.querySelector<HTMLElement>(goal === "export" ? "[aria-label='Take away']" : ".pbb-results");
    part?.scrollIntoView({ block: "nearest" });
    const first = goal === "export" ? "input[type='text'], button" : ".pbb-runs button";
    part?.querySelector<HTMLElement>(first)?.focus({ preventScroll: true });
  }

  /** What goes on in another step, or how it ended there. */
  private footer(): HTMLElement {
    const { model } = this;
    const line = make("div", { class: "pbb-foot-line" });
    const running = model.get("running");
    const card = model.get("message");
    const now = [model.get("turn"), model.get("stage") || "Starting"].filter(Boolean).join(" · ");
    const text = running ? now : cardLine(card);
    const about = running ? model.get("about") : card.about;
    const step = STEP_OF[about];
    if (!text || !step || step === this.step || this.guide.isTelling(about)) return line;
    const isError = !running && card.kind === "error";
    const click = (): void => this.turnTo(step);
    line.append(make("span", { class: isError ? "pbb-foot-error" : "", title: text }, isError ? `✕ ${text}` : text));
    line.append(make("button", { class: "pbb-link", click }, running ? "Show the run" : "Details"));
    return line;
  }

  private key(event: KeyboardEvent): void {
    this.full.escape(event);
    event.stopPropagation(); // the notebook's shortcuts must not run while somebody types or moves here
    const typing = event.target instanceof HTMLInputElement && /text|search|number/.test(event.target.type);
    if (typing || !(event.ctrlKey || event.metaKey)) return;
    const key = event.key.toLowerCase();
    const redo = key === "y" || (key === "z" && event.shiftKey);
    if (!redo && key !== "z") return;
    event.preventDefault();
    act(this.model, redo ? "redo" : "undo", {});
  }
}
