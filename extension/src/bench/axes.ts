/** The step of axes: chips by input; dims of one size that are linked are one chip. */

import type { AxisSummary } from "../generated/widgets";
import { make } from "../render/dom";
import { DIM } from "./dim";
import { type Cleanups, live, REBUILD } from "./live";
import { act, type BenchModel } from "./model";

/** The axes, each with whether an earlier one stands for it. */
export function withLeaders(axes: readonly AxisSummary[]): { axis: AxisSummary; leader: AxisSummary | null }[] {
  const leaders = new Map<string, AxisSummary>();
  return axes.map((axis) => {
    const leader = leaders.get(placeOf(axis)) ?? null;
    if (!leader) for (const place of axis.linked) if (!leaders.has(place)) leaders.set(place, axis);
    return { axis, leader };
  });
}

export function placeOf({ path, dim }: Pick<AxisSummary, "path" | "dim">): string {
  return `${path} dim ${dim}`;
}

export function axesStep(model: BenchModel, ends: Cleanups): HTMLElement {
  let edited = "";
  const edit = (place: string): void => {
    edited = edited === place ? "" : place;
    element.dispatchEvent(new Event(REBUILD));
    const first = edited ? ".pbb-axis-editor input" : `[data-edit="${CSS.escape(place)}"]`;
    const next = element.querySelector<HTMLElement>(first);
    next?.focus();
    if (next instanceof HTMLInputElement) next.select();
  };
  const element: HTMLElement = live(model, ["axes"], () => axesView(model, edited, edit), ends);
  return element;
}

function axesView(model: BenchModel, edited: string, edit: (place: string) => void): HTMLElement {
  const axes = model.get("axes");
  if (!axes.length) return make("p", DIM, "The samples hold no tensors, so there are no sizes to choose.");
  const rows = new Map<string, HTMLElement[]>();
  const texts = new Map<string, string>();
  const editors = new Map<string, HTMLElement>();
  const problems: string[] = [];
  for (const { axis, leader } of withLeaders(axes)) {
    if (axis.problem && !leader?.problem) problems.push(axis.problem); // one chip has one problem
    const chips = rows.get(axis.path) ?? [];
    rows.set(axis.path, chips);
    texts.set(axis.path, axis.places > 1 ? `${axis.path} (${axis.places})` : axis.path);
    chips.push(leader ? linkedChip(axis, leader) : chip(model, axis, edit, edited === placeOf(axis)));
    if (!leader && edited === placeOf(axis)) editors.set(axis.path, axisEditor(model, axis));
  }
  const parts = [...rows].map(([path, chips]) =>
    make(
      "div",
      { class: "pbb-axes-input" },
      make(
        "div",
        { class: "pbb-axes-row" },
        make("code", { title: texts.get(path)! }, texts.get(path)!),
        make("div", { class: "pbb-chips" }, ...chips),
      ),
      ...(editors.has(path) ? [editors.get(path)!] : []),
    ),
  );
  const notes = problems.map((problem) => make("p", { class: "pbb-problem", role: "alert" }, `⚠ ${problem}`));
  const help = "A dynamic dim takes any size, also ones that the samples do not have. Click a dim to change it.";
  return make("div", { class: "pbb-stack" }, make("p", DIM, help), ...parts, ...notes);
}

function chip(model: BenchModel, axis: AxisSummary, edit: (place: string) => void, isOpen: boolean): HTMLElement {
  const { paths, dim, dynamic, sizes, problem, verified, reason, linked } = axis;
  const seen = sizes.length ? sizes.join(", ") : "?";
  const wrong = verified !== "" && !verified.startsWith("✓");
  const attributes = {
    class: problem ? "pbb-axis pbb-wrong" : "pbb-axis",
    "aria-pressed": String(dynamic),
    title:
      problem ||
      `dim ${dim}: sizes in the samples ${seen}. ${dynamic ? "Any size" : "Only this size"} after compiling.`,
    click: () => act(model, "set_axis", { path: paths, dim, dynamic: !dynamic }),
  };
  const range = rangeText(axis);
  const state = dynamic
    ? `dynamic${range ? ` · ${range}` : ""} · seen ${seen}`
    : problem
      ? "⚠ static, but sizes differ"
      : "static";
  const lines = [make("b", {}, dynamic ? nameOf(axis) : seen), make("small", {}, state)];
  if (verified) lines.push(make("small", { class: wrong ? "pbb-wrong-text" : "pbb-proven", title: reason }, verified));
  if (linked.length) lines.push(make("small", {}, `also ${firstOf(linked)}`));
  const place = placeOf(axis);
  const toggle = make("button", attributes, ...lines.flatMap((line) => [line, " "]));
  toggle.setAttribute("aria-label", `${place}: ${lines.map((line) => line.textContent).join(" ")}`);
  const name = `Name and range of ${place}`;
  const pencil = make(
    "button",
    {
      class: "pbb-icon",
      title: name,
      "aria-label": name,
      "aria-expanded": String(isOpen),
      "data-edit": place,
      disabled: !dynamic,
      click: () => edit(place),
    },
    "✎",
  );
  return make("div", { class: "pbb-chip" }, toggle, pencil);
}

function firstOf(places: readonly string[]): string {
  const rest = places.length - 2;
  return `${places.slice(0, 2).join(", ")}${rest > 0 ? ` and ${rest} more` : ""}`;
}

function linkedChip(axis: AxisSummary, leader: AxisSummary): HTMLElement {
  const text = leader.dynamic ? nameOf(leader) : axis.sizes.join(", ");
  const title = `The same size as ${placeOf(leader)}, and changed with it`;
  const label = `${placeOf(axis)}: ${text}. ${title}.`;
  return make("span", { class: "pbb-linked", role: "note", title, "aria-label": label }, `= ${text}`);
}

function nameOf({ name, symbol, dim }: AxisSummary): string {
  return name || symbol || `d${dim}`;
}

function rangeText({ min, max }: AxisSummary): string {
  if (min < 1 && max < 1) return "";
  if (max < 1) return `at least ${min}`;
  return min < 1 ? `at most ${max}` : `${min} to ${max}`;
}

function axisEditor(model: BenchModel, axis: AxisSummary): HTMLElement {
  const { paths, dim, min, max } = axis;
  const place = placeOf(axis);
  const rename = (): void => {
    if (name.value.trim() !== nameOf(axis)) act(model, "name_axis", { path: paths[0]!, dim, name: name.value.trim() });
  };
  const limit = (): void => {
    const [from, to] = [numberIn(low), numberIn(high)];
    if (from !== Math.max(0, min) || to !== Math.max(0, max))
      act(model, "limit_axis", { path: paths, dim, min: from, max: to });
  };
  const name = make("input", { type: "text", value: nameOf(axis), "aria-label": `Name of ${place}`, change: rename });
  const low = limitBox(min, `Smallest size of ${place}`, limit);
  const high = limitBox(max, `Largest size of ${place}`, limit);
  return make(
    "div",
    { class: "pbb-axis-editor", role: "group", "aria-label": `Name and range of ${place}` },
    make("label", {}, "Name ", name),
    make("label", {}, "from ", low),
    make("label", {}, "to ", high),
    make("span", DIM, "empty: no limit"),
  );
}

function limitBox(value: number, label: string, change: () => void): HTMLInputElement {
  return make("input", { type: "number", min: 1, step: 1, value: value < 1 ? "" : value, "aria-label": label, change });
}

/** What is typed; 0, which is no size to ask for, stands for no limit. */
function numberIn(box: HTMLInputElement): number {
  return Math.max(0, Math.trunc(Number(box.value)) || 0);
}
