/** The inspector of one layer: values, error, cost, source, and what it would be with another precision. */

import type { InspectedValues, InspectionSummary, WhatIfChoice } from "../generated/widgets";
import { make } from "../render/dom";
import { sharedNow } from "../shared";
import { brushRows } from "./brush";
import { DIM } from "./dim";
import { channelBars, depthBars, histogram, scatter, strip, valuesWords } from "./inspected_charts";
import { type Cleanups, listen } from "./live";
import { cardView } from "./message";
import { act, type BenchModel } from "./model";

const TABS = ["Values", "Error", "Cost", "Source"] as const;
type Tab = (typeof TABS)[number];

let inspectors = 0;

/** Bytes in the unit that fits, with a sign. */
export function bytesWords(bytes: number): string {
  const size = Math.abs(bytes);
  const sign = bytes < 0 ? "−" : bytes > 0 ? "+" : "±";
  if (size >= 1e6) return `${sign}${Number((size / 1e6).toPrecision(3))} MB`;
  return size >= 1e3 ? `${sign}${Number((size / 1e3).toPrecision(3))} kB` : `${sign}${size} B`;
}

/** The words of a button: `int4 weights: 18.2 dB, −31 kB`. */
export function choiceWords({ label, sqnr, change, refusal }: Omit<WhatIfChoice, "precision" | "is_now">): string {
  if (refusal) return `${label}: not possible`;
  const parts = [sqnr === null ? "" : `${sqnr.toFixed(1)} dB`, change ? bytesWords(change) : ""].filter(Boolean);
  return parts.length ? `${label}: ${parts.join(", ")}` : label;
}

export class Inspector {
  readonly element = make("section", { class: "pbb-inspector", "aria-label": "Inspector", hidden: true });
  private readonly id = `pbb-inspector-${++inspectors}`;
  private tab: Tab = "Values";
  private fqn = "";
  private asked = "";

  constructor(
    private readonly model: BenchModel,
    ends: Cleanups,
  ) {
    listen(model, ["selected", "layers"], () => this.follow(), ends);
    listen(model, ["inspection", "columns"], () => this.draw(), ends);
    brushRows(this.element);
    this.element.addEventListener("click", ({ target }) => {
      const bar = (target as Element).closest<SVGElement>("svg [data-fqn]");
      if (bar && this.isLayer(bar.dataset["fqn"] ?? "")) act(model, "select", { fqn: bar.dataset["fqn"]! });
    });
    this.follow();
  }

  /** Opens for a layer, before Python has heard of the click. */
  open(fqn: string): void {
    if (fqn === this.fqn) return;
    this.fqn = this.isLayer(fqn) ? fqn : "";
    this.draw();
  }

  private isLayer(fqn: string): boolean {
    return this.model.get("layers").some((layer) => layer.fqn === fqn);
  }

  private follow(): void {
    const selected = this.model.get("selected");
    this.open(this.isLayer(selected) ? selected : "");
    if (this.fqn !== this.asked) this.ask(this.fqn);
  }

  private ask(fqn: string): void {
    this.asked = fqn;
    act(this.model, "inspect", { fqn });
  }

  private close(): void {
    act(this.model, "select", { fqn: "" });
    this.fqn = "";
    this.ask("");
    this.draw();
  }

  private draw(): void {
    const focused = document.activeElement;
    const name = this.element.contains(focused) ? (focused?.getAttribute("data-key") ?? "") : "";
    this.element.hidden = !this.fqn;
    const known = this.model.get("inspection");
    const now: InspectionSummary | null = known?.fqn === this.fqn ? known : null;
    if (!this.fqn) this.element.replaceChildren();
    else this.element.replaceChildren(this.head(now), this.content(now), ...this.choices(now));
    this.element.setAttribute("aria-busy", String(this.fqn !== "" && (!now || now.state === "running")));
    if (name)
      this.element.querySelector<HTMLElement>(`[data-key="${CSS.escape(name)}"]`)?.focus({ preventScroll: true });
  }

  private head(now: InspectionSummary | null): HTMLElement {
    const close = make(
      "button",
      {
        class: "pbb-quiet",
        "aria-label": "Close the inspector",
        "data-key": "close",
        click: () => this.close(),
      },
      "✕",
    );
    const said = [now?.type, now?.decided, now?.why].filter(Boolean).join(" · ");
    const name = make("strong", { title: this.fqn }, this.fqn || "the model");
    return make("div", { class: "pbb-inspector-head" }, name, make("span", DIM, said), this.tabs(), close);
  }

  private tabs(): HTMLElement {
    const turn = (tab: Tab): void => {
      this.tab = tab;
      this.draw();
      this.element.querySelector<HTMLElement>("[aria-selected='true']")?.focus({ preventScroll: true });
    };
    const key = (event: KeyboardEvent): void => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) turn(TABS[(TABS.indexOf(this.tab) + step + TABS.length) % TABS.length]!);
    };
    const buttons = TABS.map((tab) => {
      const chosen = tab === this.tab;
      const attributes = {
        role: "tab",
        id: `${this.id}-${tab}`,
        "aria-selected": String(chosen),
        "aria-controls": `${this.id}-panel`,
        "data-key": tab,
        tabindex: chosen ? 0 : -1,
        click: () => turn(tab),
        keydown: key,
      };
      return make("button", attributes, tab);
    });
    return make("div", { role: "tablist", class: "pbb-inspector-tabs", "aria-label": "Of the layer" }, ...buttons);
  }

  private content(now: InspectionSummary | null): HTMLElement {
    const panel = make("div", {
      role: "tabpanel",
      class: "pbb-inspector-panel",
      id: `${this.id}-panel`,
      "aria-labelledby": `${this.id}-${this.tab}`,
    });
    if (now?.state === "failed") panel.append(cardView(this.model, now.failure));
    else if (now?.state !== "ready")
      panel.append(make("p", { class: "pbb-dim", role: "status" }, `${now?.stage || "Starting"} …`));
    else panel.append(...this.parts(now));
    return panel;
  }

  private parts(now: InspectionSummary): Element[] {
    if (this.tab === "Values") return valuesView(now);
    if (this.tab === "Error") return [...errorView(now), ...this.alongDepth()];
    if (this.tab === "Cost") return costView(now);
    return sourceView(now, this.element);
  }

  /** The error of every layer of the last run; nothing where none was measured. */
  private alongDepth(): Element[] {
    const column = this.model.get("columns").find(({ key }) => key === "sqnr");
    if (!column) return [];
    const bars = this.model.get("layers").map(({ fqn }, at) => ({ fqn, value: column.values[at] ?? null }));
    const words = `${column.stale ? `old: ${column.stale}` : "each layer's own error, in the last run"}`;
    const caption = make("figcaption", {}, make("b", {}, "Along depth"), make("span", DIM, ` ${words}`));
    return [make("figure", { class: "pbb-depth" }, caption, depthBars(bars, this.fqn))];
  }

  private choices(now: InspectionSummary | null): HTMLElement[] {
    if (now?.state !== "ready") return [];
    const buttons = now.what_if.map((choice) => {
      const { precision, label, refusal, is_now } = choice;
      const click = (): void => act(this.model, "set_precision", { pattern: [now.fqn], precision });
      const attributes = {
        "aria-pressed": String(is_now),
        disabled: refusal !== "",
        title: refusal || (is_now ? "What it is now" : `Make this layer ${label}`),
        "data-key": precision,
        click,
      };
      return make("button", attributes, choiceWords(choice));
    });
    return [make("div", { class: "pbb-what-if", role: "group", "aria-label": "What if" }, "What if", ...buttons)];
  }
}

function valuesView(now: InspectionSummary): Element[] {
  const figures = now.values.map((values) => valuesFigure(values));
  return [...shownAs(now), make("div", { class: "pbb-inspected-row" }, ...figures), ...samples(now)];
}

function valuesFigure(values: InspectedValues): HTMLElement {
  const words = valuesWords(values);
  const caption = make("figcaption", {}, make("b", {}, values.title), make("span", DIM, ` ${words}`));
  const drawn = values.counts.length ? [histogram(values), ...(values.lows.length > 1 ? [strip(values)] : [])] : [];
  const note = values.counts.length && values.note ? [make("small", DIM, values.note)] : [];
  return make("figure", { "data-tensor": values.title }, caption, ...drawn, ...note);
}

function errorView(now: InspectionSummary): Element[] {
  const { error } = now;
  if (error.sqnr === null || !error.reference.length) return [make("p", DIM, "No output to compare.")];
  const figure = (title: string, words: string, drawn: Element): HTMLElement => {
    const caption = make("figcaption", {}, make("b", {}, title), make("span", DIM, ` ${words}`));
    return make("figure", {}, caption, drawn);
  };
  const worst = Math.min(...error.channels);
  const row = make(
    "div",
    { class: "pbb-inspected-row" },
    figure("Output", `${error.sqnr.toFixed(1)} dB; exact values lie on the line`, scatter(error)),
    figure("By channel", `worst ${worst.toFixed(1)} dB`, channelBars(error)),
  );
  return [...shownAs(now), row, ...samples(now)];
}

function costView({ facts }: InspectionSummary): Element[] {
  const rows = facts.flatMap(([name, words]) => [make("dt", {}, name ?? ""), make("dd", {}, words ?? "")]);
  return [make("dl", { class: "pbb-inspected-facts" }, ...rows)];
}

function sourceView({ place, file, line, code, frame }: InspectionSummary, near: HTMLElement): Element[] {
  if (!place) return [make("p", DIM, "The line that calls it is not known.")];
  const open = sharedNow().openSource;
  const click = (): void => open?.(file, line, code, near);
  const button = open ? [make("button", { "data-key": "line", click }, "Open line")] : [];
  const where = make("div", { class: "pbb-line" }, make("code", {}, place), ...button);
  return [where, make("pre", { class: "pbb-inspected-source" }, frame || code)];
}

function shownAs({ shown }: InspectionSummary): Element[] {
  return shown ? [make("p", {}, `It is left in float; grids and error are those of ${shown}.`)] : [];
}

function samples({ samples: said }: InspectionSummary): Element[] {
  return said ? [make("small", DIM, said)] : [];
}
