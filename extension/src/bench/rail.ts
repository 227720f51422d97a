/** The steps, as tabs with their status; they are places, not gates. */

import type { StepSummary } from "../generated/widgets";
import { make } from "../render/dom";
import { type Cleanups, listen } from "./live";
import type { BenchModel } from "./model";

export type StepName = StepSummary["name"];

const SIGNS: Record<StepSummary["kind"], string> = { "": "", good: "✓", warning: "⚠", bad: "✕" };
const WORDS: Record<StepSummary["kind"], string> = { "": "", good: "in order", warning: "look here", bad: "failed" };

interface Tab {
  button: HTMLButtonElement;
  title: Text;
  sign: HTMLElement;
  words: HTMLElement;
  status: string;
}

export class Rail {
  readonly element = make("div", { class: "pbb-rail", role: "tablist", "aria-label": "Steps" });
  private readonly tabs = new Map<StepName, Tab>();
  private current: StepName | null = null;

  constructor(
    private readonly model: BenchModel,
    private readonly id: string,
    private readonly choose: (name: StepName) => void,
    ends: Cleanups,
  ) {
    this.element.addEventListener("keydown", (event) => this.key(event));
    listen(model, ["steps"], () => this.update(), ends);
    this.update();
  }

  /** Marks a step as the one that is shown. */
  turnTo(name: StepName): void {
    this.current = name;
    for (const [each, { button }] of this.tabs) {
      button.setAttribute("aria-selected", String(each === name));
      button.tabIndex = each === name ? 0 : -1;
      if (each !== name || !button.classList.contains("pbb-fresh")) continue;
      button.classList.remove("pbb-fresh");
      button.title = button.title.replace(/, new$/, "");
      button.setAttribute("aria-label", button.title);
    }
  }

  private update(): void {
    for (const { name, title, status, kind } of this.model.get("steps")) {
      const tab = this.tabs.get(name) ?? this.add(name);
      if (tab.status !== "" && tab.status !== status && name !== this.current) tab.button.classList.add("pbb-fresh");
      const fresh = tab.button.classList.contains("pbb-fresh") ? "new" : "";
      tab.status = status;
      tab.button.dataset["kind"] = kind;
      const label = [title, status, WORDS[kind], fresh].filter(Boolean).join(", ");
      tab.button.setAttribute("aria-label", label);
      tab.button.title = label;
      tab.title.data = title;
      tab.sign.textContent = SIGNS[kind];
      tab.words.textContent = status || "\u00a0";
    }
    if (this.current) this.turnTo(this.current);
  }

  private add(name: StepName): Tab {
    const click = (): void => this.choose(name);
    const attributes = { role: "tab", id: `${this.id}-${name}`, "aria-controls": `${this.id}-step` };
    const title = document.createTextNode("");
    const sign = make("span", { class: "pbb-kind", "aria-hidden": "true" });
    const words = make("small");
    const button = make("button", { ...attributes, "data-step": name, click }, make("b", {}, title, sign), " ", words);
    const tab = { button, title, sign, words, status: "" };
    this.tabs.set(name, tab);
    this.element.append(tab.button);
    return tab;
  }

  private key(event: KeyboardEvent): void {
    const buttons = [...this.tabs.values()].map(({ button }) => button);
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    const next = buttons[(to + buttons.length) % buttons.length];
    next?.focus();
    next?.click();
  }
}
