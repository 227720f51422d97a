/** The best settings within a budget: what to search for, what was found while it goes on, a slider over budgets. */

import { chartSvg } from "../chart";
import type { FoundSettings } from "../generated/widgets";
import { make } from "../render/dom";
import { DIM } from "./dim";
import { type Cleanups, listen, live } from "./live";
import { cardButton } from "./message";
import { act, type BenchModel } from "./model";
import { counted } from "./numbers";
import { outcomeView } from "./outcome";

const GOALS = [
  ["latency", "Fastest"],
  ["size", "Smallest"],
  ["drop", "Most exact"],
] as const;
type Goal = (typeof GOALS)[number][0];
const HEADS = ["Settings", "Score", "Drop", "Latency (ms)", "Size (MB)", "Layers in float"];
const WORDS = new Set(["Settings", "Layers in float"]); // columns without numbers

export class SearchView {
  readonly element: HTMLElement;
  private readonly goal: HTMLSelectElement;
  private readonly bounds: Record<"loss" | "latency" | "size", HTMLInputElement>;
  private readonly results = make("div", { class: "pbb-stack" });
  private readonly slider = make("input", { type: "range", min: 0, step: 1, input: () => this.slide() });
  private readonly budget = make("output", { class: "pbb-budget" });
  private readonly moved = make("span");
  private readonly line: HTMLElement;
  private readonly said = make("p", { role: "status", class: "pbb-dim" });
  private readonly chosen = make("div", { class: "pbb-found", role: "group", "aria-label": "Chosen settings" });
  private readonly chart = make("div", { class: "pbb-search-chart" });
  private readonly table = make("div", { class: "pbb-scroll", tabindex: 0, role: "region", "aria-label": "Found" });
  /** The id of what was picked by hand; "" where the slider says. */
  private picked = "";
  private stops = "";

  constructor(
    private readonly model: BenchModel,
    ends: Cleanups,
  ) {
    this.goal = make("select", { "aria-label": "Make it", change: () => this.fitForm() });
    for (const [value, title] of GOALS) this.goal.append(make("option", { value }, title));
    const metric = model.get("search").metric;
    this.bounds = {
      loss: numberBox(metric ? `Drop of ${metric} at most` : "SQNR at least (dB)", metric ? "0.01" : "30"),
      latency: numberBox("Latency at most (ms)", ""),
      size: numberBox("Size at most (MB)", ""),
    };
    this.line = make("label", { class: "pbb-slide" }, make("span", {}, this.moved, " ", this.budget), this.slider);
    this.results.append(this.said, this.line, this.chosen, this.chart, this.table);
    this.chart.addEventListener("click", ({ target }) => {
      const at = (target as Element).closest<SVGElement>("[data-point]")?.dataset["point"];
      if (at !== undefined) this.pick(model.get("search").found[Number(at)]?.id ?? "");
    });
    this.element = make(
      "section",
      { class: "pbb-search", "aria-label": "Best settings within a budget" },
      make("h4", {}, "Best settings within a budget"),
      this.form(ends),
      outcomeView(model, "search", ends, true),
      this.results,
    );
    listen(model, ["search", "search_now"], () => this.update(), ends);
    this.fitForm();
    this.update();
  }

  private form(ends: Cleanups): HTMLElement {
    const { loss, latency, size } = this.bounds;
    const start = live(this.model, ["search_now", "running"], () => this.startLine(), ends);
    const fields = [this.goal, loss, latency, size].map(named);
    const submit = (event: Event): void => {
      event.preventDefault();
      this.start();
    };
    return make("form", { class: "pbb-search-form", submit }, make("div", { class: "pbb-fields" }, ...fields), start);
  }

  private startLine(): HTMLElement {
    const { unavailable, repairs, is_searching: searching } = this.model.get("search_now");
    const title = unavailable || "Compiles, times and scores mixtures of the planned precisions and float";
    const label = this.model.get("running") && !searching ? "Search after what runs" : "Search";
    const button = make("button", { type: "submit", disabled: searching || unavailable !== "", title }, label);
    const more = repairs.map((each) => cardButton(this.model, each));
    return make("div", { class: "pbb-line" }, button, make("span", DIM, unavailable), ...more);
  }

  /** What is made small has no bound. */
  private fitForm(): void {
    const goal = this.goal.value as Goal;
    this.bounds.loss.disabled = goal === "drop";
    this.bounds.latency.disabled = goal === "latency";
    this.bounds.size.disabled = goal === "size";
  }

  private start(): void {
    const { unavailable, is_searching: searching } = this.model.get("search_now");
    if (unavailable || searching) return;
    const bound = (box: HTMLInputElement): string => (box.disabled ? "" : box.value);
    const { loss, latency, size } = this.bounds;
    const bounds = { loss: bound(loss), latency: bound(latency), size: bound(size) };
    act(this.model, "search", { minimize: this.goal.value as Goal, ...bounds });
  }

  private update(): void {
    const { found, stops, bound, stop, chart } = this.model.get("search");
    const key = JSON.stringify(stops);
    if (key !== this.stops) {
      [this.stops, this.picked] = [key, ""];
      this.slider.max = String(Math.max(0, stops.length - 1));
      this.slider.value = String(stop);
    }
    this.results.hidden = !found.length && !this.saidText();
    this.line.hidden = stops.length < 2;
    this.moved.textContent = bound;
    this.chart.replaceChildren(...[chartSvg(chart, "pbb-chart-svg")].filter((made) => made !== null));
    this.drawTable(found);
    this.show();
  }

  private slide(): void {
    this.picked = "";
    this.show();
  }

  private pick(id: string): void {
    this.picked = id;
    this.show();
  }

  /** The index of what is chosen: by hand, else by the slider; -1 for nothing. */
  private chosenAt(): number {
    const { found, stops } = this.model.get("search");
    if (this.picked) return found.findIndex(({ id }) => id === this.picked);
    return stops[Number(this.slider.value)]?.best ?? -1;
  }

  private show(): void {
    const { found, stops } = this.model.get("search");
    const { used } = this.model.get("search_now");
    const stop = stops[Number(this.slider.value)];
    const at = this.chosenAt();
    this.budget.textContent = stop?.label ?? "";
    this.slider.setAttribute("aria-valuetext", stop ? `${stop.label}: ${stop.why}` : "");
    this.said.textContent = this.saidText();
    const focused = this.chosen.contains(document.activeElement);
    this.chosen.hidden = at < 0;
    this.chosen.replaceChildren(...(at < 0 ? [] : this.chosenParts(found[at]!, at === used)));
    if (focused) (this.chosen.querySelector("button:not(:disabled)") as HTMLElement | null)?.focus();
    for (const point of this.chart.querySelectorAll<SVGElement>("[data-point]"))
      point.classList.toggle("pbb-point", Number(point.dataset["point"]) === at);
    for (const [index, row] of [...this.table.querySelectorAll("tbody tr")].entries()) {
      row.setAttribute("data-shown", String(index === at));
      row.querySelector("button")?.setAttribute("aria-pressed", String(index === at));
    }
  }

  private saidText(): string {
    const { budget, why, found, stops, notes } = this.model.get("search");
    const { is_searching: searching, stale } = this.model.get("search_now");
    if (!budget && !searching) return "";
    const old = stale ? [`Old: ${stale}.`] : [];
    const measured = `${counted(found.filter((each) => each.measured).length, "candidate")} measured`;
    if (searching) return [`Searching for ${budget || "the best"}: ${measured} so far.`, ...old].join(" ");
    if (!why) return [`The search for ${budget} did not end: ${measured} by then.`, ...old].join(" ");
    const stop = stops[Number(this.slider.value)];
    return [...old, stop?.why ?? why, ...notes].join(" ");
  }

  private chosenParts(one: FoundSettings, used: boolean): HTMLElement[] {
    const { metric } = this.model.get("search");
    const drop = metric && one.drop !== "–" ? ` (drop ${one.drop})` : "";
    const words = `${one.score}${drop} · ${one.latency} ms · ${one.size} MB · in float: ${one.kept}`;
    const title = one.measured ? "" : "Predicted from what was measured: compile to know";
    const click = (): void => act(this.model, "use_candidate", { id: one.id });
    const label = used ? "These are the settings of now" : "Use these settings";
    const button = make("button", { class: "pbb-primary", disabled: used, click }, label);
    const kind = one.measured ? "measured" : "predicted";
    const name = make("div", {}, make("b", {}, one.name), ` ${one.target}, ${kind}`);
    return [make("div", { title }, name, make("small", {}, words)), button];
  }

  private drawTable(found: readonly FoundSettings[]): void {
    this.table.hidden = !found.length;
    const focused = [...this.table.querySelectorAll("button")].indexOf(document.activeElement as HTMLButtonElement);
    const heads = this.model.get("search").metric ? HEADS : HEADS.filter((title) => title !== "Drop");
    const head = heads.map((title) => make("th", { scope: "col", class: WORDS.has(title) ? "" : "pbb-number" }, title));
    const rows = found.map((one) => this.rowOf(one));
    const body = make("tbody", {}, ...rows);
    const table = make("table", { "aria-label": "Found settings" }, make("thead", {}, make("tr", {}, ...head)), body);
    this.table.replaceChildren(table);
    if (focused >= 0) this.table.querySelectorAll("button")[focused]?.focus();
  }

  private rowOf(one: FoundSettings): HTMLElement {
    const click = (): void => this.pick(one.id);
    const name = make("button", { class: "pbb-link", "aria-pressed": "false", click }, one.name);
    const number = (text: string): HTMLElement => make("td", { class: "pbb-number" }, text);
    const numbers = [one.score, ...(this.model.get("search").metric ? [one.drop] : []), one.latency, one.size];
    const row = make("tr", {}, make("th", { scope: "row", title: one.target }, name), ...numbers.map(number));
    row.append(make("td", { class: "pbb-note", title: one.kept }, one.kept));
    return row;
  }
}

/** A control with its name above it. */
export function named(control: HTMLElement): HTMLElement {
  const name = make("span", { class: "pbb-field-name" }, control.getAttribute("aria-label") ?? "");
  return make("label", { class: "pbb-field" }, name, control);
}

export function numberBox(title: string, value: string): HTMLInputElement {
  return make("input", { type: "text", inputmode: "decimal", size: 8, value, "aria-label": title, placeholder: "any" });
}
