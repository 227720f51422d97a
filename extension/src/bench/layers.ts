/** The table of layers with their precisions; rows are updated in place, so that thousands of layers stay quick. */

import type { LayerSummary, PrecisionChoice } from "../generated/widgets";
import { make } from "../render/dom";
import { act, type BenchModel } from "./model";

type Precision = LayerSummary["precision"];

function compact(count: number): string {
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)} M`;
  if (count >= 1e3) return `${(count / 1e3).toFixed(1)} k`;
  return String(count);
}

function isGlob(query: string): boolean {
  return /[*?[]/.test(query);
}

/** Whether a layer fits a query: a pattern over its whole name or type as Python's `fnmatch` reads it, or a part. */
export function matcher(query: string): (fqn: string, type: string) => boolean {
  const needle = query.toLowerCase();
  if (!isGlob(query)) return (fqn, type) => `${fqn} ${type}`.toLowerCase().includes(needle);
  const source = needle.replace(/\[(!?)([^\]]+)\]|[*?]|[\\^$.|+(){}[\]]/g, (found, not: string, set: string) => {
    if (set !== undefined) return `[${not ? "^" : ""}${set.replace(/[\\^]/g, "\\$&")}]`;
    return found === "*" ? ".*" : found === "?" ? "." : `\\${found}`;
  });
  const pattern = new RegExp(`^(?:${source})$`, "s");
  return (fqn, type) => pattern.test(fqn.toLowerCase()) || pattern.test(type.toLowerCase());
}

class LayerRow {
  readonly element: HTMLElement;
  private readonly buttons = new Map<Precision, HTMLElement>();
  private readonly note = make("td", { class: "pbb-note" });
  private precision: Precision;

  constructor(
    layer: LayerSummary,
    private readonly choices: readonly PrecisionChoice[],
    private readonly choose: (precision: Precision) => void,
  ) {
    this.precision = layer.precision;
    const group = make("div", { class: "pbb-choice", role: "radiogroup", "aria-label": `precision of ${layer.fqn}` });
    for (const { name, label, explanation, enabled } of choices) {
      const button = make(
        "button",
        {
          type: "button",
          role: "radio",
          title: explanation,
          "data-precision": name,
          "aria-label": `${layer.fqn} ${name}`,
          disabled: !enabled,
          click: () => choose(name),
        },
        label,
      );
      this.buttons.set(name, button);
      group.append(button);
    }
    group.addEventListener("keydown", (event) => this.arrows(event));
    this.element = make(
      "tr",
      { "data-fqn": layer.fqn },
      make("th", { scope: "row", title: layer.fqn }, layer.fqn),
      make("td", {}, group),
      this.note,
      make("td", {}, layer.type),
      make("td", { class: "pbb-number" }, compact(layer.parameters)),
    );
    this.update(layer);
  }

  update(layer: LayerSummary): void {
    this.precision = layer.precision;
    this.element.dataset.precision = layer.precision;
    for (const [precision, button] of this.buttons) {
      const on = precision === layer.precision;
      button.setAttribute("aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
    }
    this.note.textContent = layer.note || "–";
    this.note.title = layer.note || "not compiled yet";
  }

  private arrows(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const enabled = this.choices.filter((choice) => choice.enabled).map((choice) => choice.name);
    const next = enabled[(enabled.indexOf(this.precision) + step + enabled.length) % enabled.length]!;
    this.choose(next);
    this.buttons.get(next)?.focus();
  }
}

/** The table, a filter above it, and buttons that set every layer that the filter shows. */
export class LayerTable {
  readonly element: HTMLElement;
  private readonly rows = new Map<string, LayerRow>();
  private readonly body = make("tbody");
  private readonly nothing = make("p", { class: "pbb-nothing", role: "status" });
  private readonly result = make("th", { scope: "col" }, "result");
  private readonly scroll: HTMLElement;
  private readonly counts = make("span", { class: "pbb-counts", "aria-live": "polite" });
  private readonly filter = make("input", {
    type: "search",
    placeholder: "Filter: conv or blocks.*.conv1",
    title: "Part of a name or type, or a pattern over whole names: * any text, ? one character",
    "aria-label": "filter layers",
    input: () => this.applyFilter(),
  });

  constructor(private readonly model: BenchModel) {
    const titles = ["layer", "precision", "result", "type", "parameters"];
    const columns = titles.map((title) => (title === "result" ? this.result : make("th", { scope: "col" }, title)));
    const head = make("tr", {}, ...columns);
    const toolbar = make("div", { class: "pbb-toolbar" });
    toolbar.append(this.filter, make("span", { class: "pbb-dim" }, "all shown:"), this.bulk(), this.counts);
    this.scroll = make(
      "div",
      { class: "pbb-scroll", tabindex: "0", role: "region", "aria-label": "layers" },
      make("table", {}, make("thead", {}, head), this.body),
    );
    this.element = make("div", {}, toolbar, this.scroll, this.nothing);
    this.update();
  }

  update(): void {
    const layers = this.model.get("layers");
    for (const layer of layers) {
      const row = this.rows.get(layer.fqn);
      if (row) row.update(layer);
      else this.add(layer);
    }
    if (!layers.length) {
      const none = make("td", { colspan: "5", class: "pbb-dim" }, "No layer of this model can be quantized.");
      this.body.replaceChildren(make("tr", {}, none));
    }
    const stale = this.model.get("stale");
    this.scroll.classList.toggle("pbb-stale-results", stale !== "");
    this.result.textContent = stale ? "old result" : "result";
    this.result.title = stale;
    this.count(layers);
    this.applyFilter();
  }

  private bulk(): HTMLElement {
    const group = make("div", { class: "pbb-choice", role: "group", "aria-label": "set all shown layers" });
    for (const { name, label, explanation, enabled } of this.model.get("precisions")) {
      const attributes = {
        type: "button",
        "aria-label": `set shown layers to ${name}`,
        title: `Set all shown layers: ${explanation}`,
        disabled: !enabled,
        click: () => this.choose(this.shown(), name),
      };
      group.append(make("button", attributes, label));
    }
    return group;
  }

  private add(layer: LayerSummary): void {
    const row = new LayerRow(layer, this.model.get("precisions"), (precision) => this.choose([layer.fqn], precision));
    this.rows.set(layer.fqn, row);
    this.body.append(row.element);
  }

  private choose(pattern: string[], precision: Precision): void {
    if (pattern.length) act(this.model, "set_precision", { pattern, precision });
  }

  private shown(): string[] {
    return [...this.rows].filter(([, row]) => !row.element.hidden).map(([fqn]) => fqn);
  }

  private applyFilter(): void {
    const query = this.filter.value.trim();
    const fits = matcher(query);
    let shown = 0;
    for (const { fqn, type } of this.model.get("layers")) {
      const row = this.rows.get(fqn);
      if (!row) continue;
      row.element.hidden = !fits(fqn, type);
      if (!row.element.hidden) shown++;
    }
    const none = shown === 0 && this.rows.size > 0;
    this.nothing.hidden = !none;
    this.scroll.hidden = none;
    if (!none) return;
    const clear = make("button", { type: "button", click: () => this.clear() }, "Show all layers");
    const searched = `No name or type among ${this.rows.size} layers fits “${query}”. `;
    const widen = isGlob(query)
      ? `A pattern must fit the whole name: try “*${query.replace(/^\*+|\*+$/g, "")}*”. `
      : "Try a shorter part of a name, or a pattern such as “*conv*”. ";
    this.nothing.replaceChildren(searched, widen, clear);
  }

  private clear(): void {
    this.filter.value = "";
    this.applyFilter();
    this.filter.focus();
  }

  private count(layers: readonly LayerSummary[]): void {
    const counts = new Map<string, number>();
    for (const { precision } of layers) counts.set(precision, (counts.get(precision) ?? 0) + 1);
    this.counts.textContent = [...counts].map(([precision, count]) => `${count} × ${precision}`).join(" · ");
  }
}
