/** The step of results: the history of runs, one of them in detail, two compared, and what can be taken away. */

import { chartSvg } from "../chart";
import { make } from "../render/dom";
import { differenceView } from "./compare";
import { DIM } from "./dim";
import { Answers, type Cleanups, listen, live } from "./live";
import { act, type BenchModel, RUN_TRAITS, type RunNow, runsNow } from "./model";
import { outcomeView } from "./outcome";
import { detailsOf } from "./rundetails";
import { takeAway } from "./takeaway";
import { WrittenView } from "./written";

const CALLS = ["Compare", "Run", "Score", "Speed-up", "Against float", "Median (ms)", "Size", "Made"];
const TEXTS = [
  "Compare",
  "Run",
  "Score",
  "Speed-up",
  "First (ms)",
  "Token (ms)",
  "Tokens/s",
  "Peak (MB)",
  "Size",
  "Made",
];
const WHERE = "Where";
const WORDS = new Set(["Compare", "Run", WHERE, "Made"]); // columns without numbers

/** The event that says that a comparison was asked for from another step. */
export const COMPARED = "pbb-compared";

export class ResultsStep {
  readonly element: HTMLElement;
  private readonly body = make("tbody");
  private readonly table: HTMLElement;
  private readonly empty = make("div", { class: "pbb-empty" });
  private readonly rows = new Map<string, { element: HTMLElement; key: string }>();
  private compared: string[] = [];
  private readonly answers = new Answers();
  private known: Set<string> | null = null;
  private readonly head = make("tr");
  private titles: readonly string[] = [];
  private readonly written = new WrittenView();
  private readonly wrote = make("section", { class: "pbb-stack", "aria-label": "What candidates wrote" });

  constructor(
    private readonly model: BenchModel,
    ends: Cleanups,
  ) {
    const table = make("table", { class: "pbb-runs", "aria-label": "Runs" }, make("thead", {}, this.head), this.body);
    this.table = make(
      "div",
      { class: "pbb-scroll pbb-history", tabindex: "0", role: "region", "aria-label": "Runs" },
      table,
    );
    this.empty.append(
      make("b", {}, "No results yet."),
      make("span", DIM, " Choose targets in Run and press Compile; every run stays here."),
    );
    const details = live(model, RUN_TRAITS, () => this.detail(), ends);
    const difference = live(model, ["difference"], differenceView, ends);
    const differs = (): void => {
      this.tickCompared();
      if (model.get("difference").second) this.answers.show(difference);
    };
    listen(model, ["difference"], differs, ends);
    this.element = make(
      "div",
      { class: "pbb-results" },
      live(model, ["elsewhere"], elsewhereView, ends),
      live(model, ["chart"], () => this.chart(), ends),
      this.empty,
      this.table,
      outcomeView(model, "samples", ends, true),
      difference,
      details,
      this.wrote,
      takeAway(model, ends),
    );
    this.element.addEventListener(COMPARED, () => this.answers.ask());
    this.wrote.append(make("h4", {}, "What candidates wrote"), this.written.element);
    listen(model, RUN_TRAITS, () => this.update(), ends);
    listen(model, ["prompts", "written"], () => this.compareTexts(), ends);
    this.update();
    this.tickCompared();
    this.compareTexts();
  }

  /** The chart where a page has no place for the one of plotly, as in marimo. */
  private chart(): HTMLElement {
    const { model } = this;
    const place = make("div", { class: "pbb-own-chart" });
    const drawn = chartSvg(model.get("chart"), "pbb-chart-svg");
    drawn?.addEventListener("click", ({ target }) => {
      const at = (target as Element).closest<SVGElement>("[data-point]")?.dataset["point"];
      const name = at === undefined ? "" : model.get("chart").points[Number(at)]?.name;
      const id = model.get("runs").find((run) => run.name === name)?.id;
      if (id) act(model, "restore_run", { id });
    });
    if (drawn) place.append(drawn);
    return place;
  }

  private compareTexts(): void {
    const written = this.model.get("written");
    this.written.show(this.model.get("prompts"), written);
    this.wrote.hidden = written.length === 0;
  }

  private update(): void {
    const runs = runsNow(this.model);
    this.drawHead(runs);
    this.empty.hidden = runs.length > 0;
    this.table.hidden = runs.length === 0;
    const ids = new Set(runs.map(({ id }) => id));
    for (const [id, { element }] of this.rows) {
      if (ids.has(id)) continue;
      element.remove();
      this.rows.delete(id);
    }
    this.compared = this.compared.filter((id) => ids.has(id));
    for (const [at, run] of runs.entries()) this.place(run, at);
    this.known = ids;
  }

  /** Costs of generating have columns where any run generated. */
  private drawHead(runs: readonly RunNow[]): void {
    const costs = runs.some(({ first }) => first) ? TEXTS : CALLS;
    const others = runs.some(({ where, is_own: own }) => where || !own);
    const titles = others ? [...costs.slice(0, 2), WHERE, ...costs.slice(2)] : costs;
    if (this.titles.join() === titles.join()) return;
    this.titles = titles;
    this.head.replaceChildren(...titles.map(headCell));
    for (const { element } of this.rows.values()) element.remove();
    this.rows.clear();
  }

  /** Makes a row only where its run changed, so that a long history costs nothing. */
  private place(run: RunNow, at: number): void {
    const key = JSON.stringify(run);
    const old = this.rows.get(run.id);
    let element = old?.element;
    if (!old || old.key !== key) {
      element = this.rowOf(run);
      if (!old && this.known !== null) element.classList.add("pbb-new");
      const focused = old?.element.contains(document.activeElement);
      old?.element.replaceWith(element);
      this.rows.set(run.id, { element, key });
      if (focused) element.querySelector<HTMLElement>("button")?.focus();
    }
    if (this.body.children[at] !== element) this.body.insertBefore(element!, this.body.children[at] ?? null);
  }

  private rowOf(run: RunNow): HTMLElement {
    const {
      id,
      name,
      target,
      score,
      spread,
      change,
      p50,
      p90,
      speed,
      size,
      slower,
      error,
      stale,
      shown,
      pinned,
      made,
      first,
      rate,
      peak,
    } = run;
    const writes = this.titles.includes("Tokens/s");
    const beside = run.beside && `The float model: ${run.beside}`;
    const show = (): void => act(this.model, "show_run", { id });
    const pressed = { class: "pbb-link", "aria-pressed": String(shown), click: show };
    const open = run.is_own ? make("button", pressed, name) : make("span", {}, name);
    const place = [run.where || "here", run.is_own ? "" : "file"].filter(Boolean).join(" · ");
    const about = [run.model && `Model: ${run.model}`, run.is_far ? "Its latency is that of another machine" : ""];
    const placeCell = make("td", { class: "pbb-dim", title: about.filter(Boolean).join("\n") }, place);
    const marks = `${pinned ? " · pinned" : ""}${stale.length ? " · old" : ""}${error ? " · ✕ failed" : ""}`;
    const old = stale.length ? `Its choices differ: ${stale.join("; ")}` : target;
    const row = make(
      "tr",
      {
        "data-run": id,
        "data-shown": String(shown),
        "data-stale": String(stale.length > 0),
        "data-far": String(run.is_far),
      },
      make("td", {}, this.compareBox(run)),
      make("th", { scope: "row", class: "pbb-name", title: old }, open, make("span", DIM, marks)),
      ...(this.titles.includes(WHERE) ? [placeCell] : []),
      number(score, spread && `95 % interval ${spread}`),
      speedCell(`${slower ? "⚠ " : ""}${speed}`, run),
      writes ? number(first, beside) : number(change),
      timeCell(p50, p90 && `90 % within ${p90} ms`),
      ...(writes ? [number(rate, beside)] : []),
      ...(writes ? [number(peak, beside)] : []),
      number(size),
      make("td", { class: "pbb-dim", title: made }, timeText(made)),
    );
    row.addEventListener("click", (event) => {
      if (run.is_own && !(event.target as Element).closest("button, input, a")) show();
    });
    return row;
  }

  /** Ticks the runs that are compared, also where a card has asked for that. */
  private tickCompared(): void {
    const { first, second } = this.model.get("difference");
    const found = [first, second].map((name) => runsNow(this.model).find((run) => run.name === name && run.is_own)?.id);
    const [one, other] = found;
    if (one === undefined || other === undefined) return;
    this.compared = [one, other];
    for (const box of this.body.querySelectorAll<HTMLInputElement>("input[data-id]"))
      box.checked = this.compared.includes(box.dataset["id"]!);
  }

  private compareBox({ id, name, is_own: own }: RunNow): HTMLElement {
    const change = (): void => {
      const others = this.compared.filter((other) => other !== id);
      this.compared = box.checked ? [...others, id].slice(-2) : others;
      for (const each of this.body.querySelectorAll<HTMLInputElement>("input[data-id]")) {
        each.checked = this.compared.includes(each.dataset["id"]!);
      }
      const [first, second] = this.compared;
      if (second) this.answers.ask();
      act(this.model, "compare_runs", { first: second ? first! : "", second: second ?? "" });
    };
    const title = own ? "" : "Only runs of this bench are compared";
    const more = { "data-id": id, change, disabled: !own, title };
    const box = make("input", { type: "checkbox", "aria-label": `Compare ${name}`, ...more });
    box.checked = this.compared.includes(id);
    return box;
  }

  private detail(): HTMLElement {
    const shown = runsNow(this.model).find((run) => run.shown);
    return make("div", { class: "pbb-run-details", hidden: !shown }, ...(shown ? [detailsOf(this.model, shown)] : []));
  }
}

/** Which runs of other machines and notebooks are listed, and from which file. */
function elsewhereView(model: BenchModel): HTMLElement {
  const { count, shown, path } = model.get("elsewhere");
  const box = make("input", { type: "checkbox", change: () => act(model, "show_elsewhere", { shown: box.checked }) });
  box.checked = shown;
  const help = "Runs of other machines and notebooks in the same journal, and those of the file";
  const name = "Results file";
  const title = "The path of a journal on the kernel's machine, as results= or a saved bench has written it";
  const file = make("input", { type: "text", value: path, "aria-label": name, placeholder: "results.sqlite", title });
  const submit = (event: Event): void => {
    event.preventDefault();
    read.focus(); // what is typed in is not built again
    act(model, "show_results", { path: file.value });
  };
  const hide = (): void => act(model, "show_results", { path: "" });
  const read = make("button", { type: "submit" }, path ? "Read again" : "Show");
  const form = make(
    "form",
    { class: "pbb-line", submit },
    make("label", { class: "pbb-file" }, make("span", DIM, `${name} `), file),
    read,
    ...(path ? [make("button", { click: hide }, "Close the file")] : []),
  );
  const label = make("label", { class: "pbb-switch", title: help }, box, ` From other notebooks (${count})`);
  return make("div", { class: "pbb-line pbb-elsewhere" }, label, form);
}

/** The boxes of the first column say what they are for. */
function headCell(title: string): HTMLElement {
  if (title === "Compare") return make("th", { scope: "col", title: "Compare two runs", "aria-label": title }, "⇄");
  return make("th", { scope: "col", class: WORDS.has(title) ? "" : "pbb-number" }, title);
}

function number(text: string, title = "", kind = ""): HTMLElement {
  return make("td", { class: `pbb-number ${kind}`, title: title || (text === "–" ? "not known" : "") }, text || "–");
}

/** A time, and under it its interval. */
function timeCell(text: string, title: string): HTMLElement {
  const [value = "", interval] = text.split(" (");
  const cell = number(value, title);
  if (interval) cell.append(make("div", DIM, `(${interval}`));
  return cell;
}

/** The speed-up with its baseline, and under it the time of PyTorch, which the run was timed beside. */
function speedCell(text: string, { slower, why, eager }: RunNow): HTMLElement {
  const cell = number(text, why, slower ? "pbb-speed pbb-slower" : "pbb-speed");
  if (eager) cell.append(make("div", DIM, eager));
  return cell;
}

/** A time of today as a time, others as a date. */
function timeText(iso: string): string {
  const made = new Date(iso);
  if (Number.isNaN(made.getTime())) return iso;
  const isToday = made.toDateString() === new Date().toDateString();
  return isToday
    ? made.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })
    : made.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}
