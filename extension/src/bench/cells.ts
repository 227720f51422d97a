/** The columns of the table of layers, and the cells of one row. */

import type { LayerColumn } from "../generated/widgets";
import { make } from "../render/dom";
import { counted, fillOf, shortNumber } from "./numbers";
import { patternOf, type Row, type Rows } from "./rows";

const [LEAST, LETTER, SIDES] = [96, 7, 30]; // pixels of a column of numbers, of a letter, beside the head
const [LEAST_NAME, MOST_NAME, CODE_LETTER, NAME_SIDES] = [216, 420, 7.3, 60]; // the same of names, which are code

export interface Column {
  key: string;
  title: string;
  help: string;
  width: number;
  numeric: boolean;
}

/** The columns, by what the data have. */
export function columnsOf(rows: Rows, stale: string): Column[] {
  const numbers = rows.data.columns.map(({ key, title, unit, help, stale: old }) => {
    const head = `${title}${unit ? ` (${unit})` : ""}${old ? ", old" : ""}`;
    const about = old ? `Old: ${old}. ${help}` : help;
    return { key, title: head, help: about, width: Math.max(LEAST, head.length * LETTER + SIDES), numeric: true };
  });
  const text = (key: string, title: string, help: string, width: number): Column => {
    return { key, title, help, width, numeric: false };
  };
  const old = stale ? `These are results of other choices: ${stale}` : "";
  const about = old || "What the newest run made of the layer";
  const applied = text("applied", stale ? "Applied (old)" : "Applied", about, 110);
  const why = text("why", "Why", "Why a run did something else than was planned", 160);
  const longest = rows.data.layers.reduce((most, { fqn }) => Math.max(most, fqn.length), 0);
  const names = Math.min(MOST_NAME, Math.max(LEAST_NAME, Math.ceil(longest * CODE_LETTER) + NAME_SIDES));
  return [
    text("name", "Layer", "Name in the model", names),
    text("planned", "Planned", "What the current choices ask for", 110),
    ...(hasPruning(rows) ? [text("pruning", "Pruning", "What is pruned; after a run, what it did", 150)] : []),
    { key: "parameters", title: "Parameters", help: "Numbers in weight and bias", width: 104, numeric: true },
    ...(hasRun(rows) ? [applied, why] : []), // they would be empty
    ...numbers,
    text("rule", "Set by", "The rule that decides for the layer", 150),
    text("type", "Type", "Class of the module", 104),
  ];
}

function hasRun(rows: Rows): boolean {
  return rows.data.applied.length > 0;
}

/** The width of the names: what they need, and a third of the bench at most where that is more than the least. */
export function namesWidth(columns: readonly Column[]): string {
  return `max(${LEAST_NAME}px, min(${columns[0]!.width}px, 33cqi))`;
}

function hasPruning(rows: Rows): boolean {
  return rows.data.decisions.some(({ pruning }) => pruning) || rows.data.outcomes.some(({ pruned }) => pruned);
}

/** What is planned, and what became of it in the run that is shown. */
function pruningOf(layer: number, rows: Rows): string {
  const planned = rows.decision(layer)?.pruning ?? "";
  const done = rows.outcome(layer)?.pruned ?? "";
  return [planned, done].filter(Boolean).join(" → ");
}

/** What several layers say, once: the text that all have, or how many differ. */
function common(texts: readonly string[]): string {
  const kinds = [...new Set(texts)];
  return kinds.length <= 2 ? kinds.join(", ") : `${kinds.length} kinds`;
}

function badge(label: string, kind: "planned" | "applied"): HTMLElement {
  return make("span", { class: `pbb-badge pbb-${kind}`, "data-fill": fillOf(label), title: label }, label);
}

function countsOf(labels: readonly string[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  return counts;
}

function tally(labels: readonly string[]): string {
  return [...countsOf(labels)].map(([label, count]) => `${count} × ${label}`).join(", ");
}

function badges(labels: readonly string[], kind: "planned" | "applied"): HTMLElement[] {
  const counts = countsOf(labels);
  const several = counts.size > 1;
  return [...counts].slice(0, 3).map(([label, count]) => badge(several ? `${count} × ${label}` : label, kind));
}

function nameCell(row: Row, rows: Rows, open: boolean, toggle: () => void): HTMLElement {
  const first = rows.data.layers[row.members[0]!]!;
  if (row.layer >= 0) {
    const kind = row.inside ? "pbb-name pbb-inside" : "pbb-name";
    return make("th", { scope: "row", class: kind, title: first.fqn }, first.fqn);
  }
  const pattern = patternOf(first.fqn);
  const click = (event: Event): void => {
    event.stopPropagation();
    toggle();
  };
  const fold = make("span", { class: "pbb-fold", "aria-hidden": "true", click }, open ? "▾" : "▸");
  const count = make("span", { class: "pbb-times" }, `× ${row.members.length}`);
  return make("th", { scope: "row", class: "pbb-name pbb-group", title: pattern }, fold, make("b", {}, pattern), count);
}

function numberCell(column: LayerColumn, members: readonly number[]): HTMLElement {
  const values = members.map((layer) => column.values[layer] ?? null);
  const known = values.filter((value): value is number => value !== null && !Number.isNaN(value));
  const low = shortNumber(known.length ? Math.min(...known) : null);
  const high = shortNumber(known.length ? Math.max(...known) : null);
  const notes = members.map((layer) => column.notes[column.noted[layer] ?? -1] ?? "").filter(Boolean);
  const title = common(notes) || (known.length ? "" : "not known");
  const kind = column.stale ? "pbb-number pbb-old-number" : "pbb-number";
  return make("td", { class: kind, title }, low === high ? low : `${low} – ${high}`);
}

/** The cells of a row, in the order of `columnsOf`. */
export function cellsOf(row: Row, rows: Rows, open: boolean, toggle: () => void): HTMLElement[] {
  const { members } = row;
  const decisions = members.map((layer) => rows.decision(layer));
  const outcomes = members.map((layer) => rows.outcome(layer));
  const known = outcomes.filter((outcome) => outcome !== null);
  const why = common(known.map((outcome) => outcome.why).filter(Boolean));
  const rule = common(decisions.map((decision) => decision?.rule ?? ""));
  const pruning = common(members.map((layer) => pruningOf(layer, rows)).filter(Boolean));
  const parameters = members.reduce((sum, layer) => sum + rows.data.layers[layer]!.parameters, 0);
  const type = common(members.map((layer) => rows.data.layers[layer]!.type));
  const applied = known.length
    ? badges(
        known.map(({ label }) => label),
        "applied",
      )
    : [make("span", { class: "pbb-dim", title: "not compiled yet" }, "–")];
  const appliedCell = make("td", { title: tally(known.map(({ label }) => label)) }, ...applied);
  const whyCell = make("td", { class: "pbb-note", title: why }, why);
  const numbers = rows.data.columns.map((column) => numberCell(column, members));
  return [
    nameCell(row, rows, open, toggle),
    make(
      "td",
      {},
      ...badges(
        decisions.map((decision) => decision?.label ?? "–"),
        "planned",
      ),
    ),
    ...(hasPruning(rows) ? [make("td", { class: "pbb-note", title: pruning }, pruning || "–")] : []),
    ...(hasRun(rows) ? [appliedCell, whyCell, ...numbers] : [...numbers, appliedCell, whyCell]),
    make("td", { class: "pbb-number", title: `${parameters} parameters` }, shortNumber(parameters)),
    make("td", { class: "pbb-rule", title: rule }, rule === "global" ? "default" : rule),
    make("td", { title: type }, type),
  ];
}

function spokenNumber({ title, unit, values, stale }: LayerColumn, layer: number): string {
  const value = values[layer] ?? null;
  return value === null ? `${title} unknown` : `${title} ${shortNumber(value)} ${unit}${stale ? ", old" : ""}`;
}

/** A row in words, for those who hear it. */
export function spoken(row: Row, rows: Rows): string {
  const first = rows.data.layers[row.members[0]!]!;
  const name = row.layer >= 0 ? first.fqn : `${patternOf(first.fqn)}, ${counted(row.members.length, "layer")}`;
  const planned = common(row.members.map((layer) => rows.decision(layer)?.label ?? "unknown"));
  const outcomes = row.members.map((layer) => rows.outcome(layer)).filter((outcome) => outcome !== null);
  const applied = outcomes.length ? `, applied ${common(outcomes.map(({ label }) => label))}` : "";
  const why = common(outcomes.map((outcome) => outcome.why).filter(Boolean));
  const pruned = common(row.members.map((layer) => pruningOf(layer, rows)).filter(Boolean));
  const numbers = row.layer < 0 ? [] : rows.data.columns.map((column) => spokenNumber(column, row.layer));
  const pruning = pruned ? [`pruning ${pruned}`] : [];
  return [`${name}, planned ${planned}${applied}${why ? `: ${why}` : ""}`, ...pruning, ...numbers].join(", ");
}
