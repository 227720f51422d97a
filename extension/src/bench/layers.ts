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
      make("td", {}, layer.type),
      make("td", { class: "pbb-number" }, compact(layer.parameters)),
      make("td", {}, group),
      this.note,
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
    this.note.textContent = layer.note;
    this.note.title = layer.note;
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
  private readonly counts = make("span", { class: "pbb-counts", "aria-live": "polite" });
  private readonly filter = make("input", {
    type: "search",
    placeholder: "Filter layers by name or type",
    "aria-label": "filter layers",
    input: () => this.applyFilter(),
  });

  constructor(private readonly model: BenchModel) {
    const titles = ["layer", "type", "parameters", "precision", "result"];
    const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
    const toolbar = make("div", { class: "pbb-toolbar" });
    toolbar.append(this.filter, make("span", { class: "pbb-dim" }, "all shown:"), this.bulk(), this.counts);
    this.element = make(
      "div",
      {},
      toolbar,
      make(
        "div",
        { class: "pbb-scroll", tabindex: "0", role: "region", "aria-label": "layers" },
        make("table", {}, make("thead", {}, head), this.body),
      ),
    );
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
    const needle = this.filter.value.trim().toLowerCase();
    for (const { fqn, type } of this.model.get("layers")) {
      const row = this.rows.get(fqn);
      if (row) row.element.hidden = needle !== "" && !`${fqn} ${type}`.toLowerCase().includes(needle);
    }
  }

  private count(layers: readonly LayerSummary[]): void {
    const counts = new Map<string, number>();
    for (const { precision } of layers) counts.set(precision, (counts.get(precision) ?? 0) + 1);
    this.counts.textContent = [...counts].map(([precision, count]) => `${count} × ${precision}`).join(" · ");
  }
}
