/** The columns of the table of layers, and the cells of one row. */

import type { LayerColumn } from "../generated/widgets";
import { make } from "../render/dom";
import { DIM } from "./dim";
import { counted, fillOf, shortNumber } from "./numbers";
import type { Row, Rows } from "./rows";

const [LEAST, LETTER, SIDES] = [100, 7, 36]; // pixels of a column of numbers, of a letter, beside the head
const [LEAST_NAME, MOST_NAME, CODE_LETTER, NAME_SIDES] = [170, 420, 7.3, 60]; // the same of names, which are code
const [DECIDED, MIXED] = [132, 190]; // pixels: what was planned and what was done, and that of layers that differ

export interface Column {
  key: string;
  title: string;
  help: string;
  width: number;
  numeric: boolean;
  /** Whether it is shown where there is room and nobody chose. */
  isFirst: boolean;
  /** Of cells with bars: what a row is worth, and where its bars begin and end. */
  bar?: Bars;
}

interface Bars {
  worthOf(row: Row): number | null;
  unit: string;
  isOld: boolean;
  from: number;
  to: number;
}

/** The columns, by what the data have; `list` are the rows that bars are compared among. */
export function columnsOf(rows: Rows, list: readonly Row[], stale: string): Column[] {
  const text = (key: string, title: string, help: string, width: number, isFirst = false): Column => {
    return { key, title, help, width, numeric: false, isFirst };
  };
  const old = stale ? `These are results of other choices: ${stale}` : "";
  const about = hasRun(rows)
    ? `Outlined: planned. Filled: done by the run shown. Both where they differ. ${old}`.trim()
    : "What the current choices ask for. A dot: a rule decides";
  const longest = rows.data.layers.reduce((most, { fqn }) => Math.max(most, fqn.length), 0);
  const names = Math.min(MOST_NAME, Math.max(LEAST_NAME, Math.ceil(longest * CODE_LETTER) + NAME_SIDES));
  return [
    text("name", "Layer", "Name in the model", names, true),
    text("planned", stale ? "Decided as (old)" : "Decided as", about, isMixed(rows, list) ? MIXED : DECIDED, true),
    sizeColumn(rows, list),
    ...orderedNumbers(rows).map((column) => numberColumn(column, list)),
    ...(hasPruning(rows) ? [text("pruning", "Pruning", "What is pruned; after a run, what it did", 150, true)] : []),
    ...(hasRun(rows) ? [text("why", "Why", "Why a run did something else than was planned", 160)] : []),
    text("rule", "Set by", "The rule that decides for the layer", 150),
    text("type", "Type", "Class of the module", 104),
  ];
}

/** Those with bars lead: time, then sensitivity. */
function orderedNumbers(rows: Rows): LayerColumn[] {
  const rank = ({ worst }: LayerColumn): number => (worst === "greatest" ? 0 : worst === "least" ? 1 : 2);
  return [...rows.data.columns].sort((one, other) => rank(one) - rank(other));
}

function sizeColumn(rows: Rows, list: readonly Row[]): Column {
  const worthOf = ({ members }: Row): number =>
    members.reduce((sum, layer) => sum + rows.data.layers[layer]!.parameters, 0);
  const help = "Numbers in weight and bias";
  const bar = { worthOf, unit: "", isOld: false, from: 0, to: Math.max(0, ...list.map(worthOf)) };
  return { key: "parameters", title: "Parameters", help, width: 104, numeric: true, isFirst: true, bar };
}

function numberColumn(column: LayerColumn, list: readonly Row[]): Column {
  const { key, title, unit, help, stale, worst } = column;
  const named = `${title}${unit ? ` (${unit})` : ""}`;
  const head = stale && !worst ? `${named}, old` : named; // with bars, below it
  const width = Math.max(LEAST, head.length * LETTER + SIDES);
  const about = stale ? `Old: ${stale}. ${help}` : help;
  const plain = { key, title: head, help: about, width, numeric: true, isFirst: true };
  if (!worst) return plain;
  const worthOf = ({ members }: Row): number | null => together(column, members);
  const known = list.map(worthOf).filter((value) => value !== null);
  const [least, most] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 0];
  const ends = worst === "least" ? { from: most, to: least } : { from: 0, to: most };
  return { ...plain, bar: { worthOf, unit, isOld: stale !== "", ...ends } };
}

/** What several layers come to: shares of a whole add up, else the worst counts. */
function together({ values, worst, unit }: LayerColumn, members: readonly number[]): number | null {
  const found = members.map((layer) => values[layer] ?? null).filter((value) => value !== null);
  if (!found.length) return null;
  if (worst === "least") return Math.min(...found);
  return unit === "%" ? found.reduce((sum, value) => sum + value, 0) : Math.max(...found);
}

/** What stands below the title of a column with bars: the worth of the longest one. */
export function scaleOf({ bar }: Column): string {
  const old = bar?.isOld ? "old · " : "";
  if (!bar || bar.from === bar.to) return old.trim();
  const worst = bar.from > bar.to ? ", worst" : "";
  return `${old}full bar ${shortNumber(bar.to)}${bar.unit ? ` ${bar.unit}` : ""}${worst}`;
}

/** Whether a row has layers of several precisions. */
function isMixed(rows: Rows, list: readonly Row[]): boolean {
  return list.some(({ members }) => new Set(members.map((layer) => rows.decision(layer)?.label)).size > 1);
}

function hasRun(rows: Rows): boolean {
  return rows.data.applied.length > 0;
}

/** The columns to show: those that were chosen, else as many of the first ones as the width takes beside names. */
export function shownColumns(all: readonly Column[], room: number, chosen: ReadonlySet<string> | null): Column[] {
  if (chosen) return all.filter(({ key }) => key === "name" || chosen.has(key));
  let left = room - LEAST_NAME;
  return all.filter(({ key, width, isFirst }) => {
    if (key === "name") return true;
    if (!isFirst || (left < width && key !== "planned" && key !== "parameters")) return false;
    left -= width;
    return true;
  });
}

/** The width of the names: what they need, and no more than the others leave where that is more than the least. */
export function namesWidth(columns: readonly Column[], room: number): number {
  const others = columns.slice(1).reduce((sum, { width }) => sum + width, 0);
  return Math.max(LEAST_NAME, Math.min(columns[0]!.width, room - others));
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

function badge(label: string, kind: "planned" | "applied", words = label): HTMLElement {
  return make("span", { class: `pbb-badge pbb-${kind}`, "data-fill": fillOf(label) }, words);
}

function countsOf(labels: readonly string[]): [label: string, count: number][] {
  const counts = new Map<string, number>();
  for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1]);
}

function tally(labels: readonly string[]): string {
  const counts = countsOf(labels);
  return counts.length === 1 ? counts[0]![0] : counts.map(([label, count]) => `${count} × ${label}`).join(", ");
}

/** What the layers of a row are: two kinds with how many there are of each, or the most and how many others. */
function badgesOf(labels: readonly string[], kind: "planned" | "applied"): HTMLElement[] {
  const counts = countsOf(labels);
  const shown = counts.length > 2 ? counts.slice(0, 1) : counts;
  const badges = shown.map(([label, count]) => badge(label, kind, counts.length > 1 ? `${count} × ${label}` : label));
  return counts.length > 2 ? [...badges, make("span", DIM, `${labels.length - counts[0]![1]} others`)] : badges;
}

/** Planned and done in one cell: both where they differ; a dot where a rule decides. */
function decidedCell({ members }: Row, rows: Rows): HTMLElement {
  const decisions = members.map((layer) => rows.decision(layer));
  const planned = decisions.map((decision) => decision?.label ?? "–");
  const ended = members.filter((layer) => rows.outcome(layer) !== null);
  const outcomes = ended.map((layer) => rows.outcome(layer)!);
  const differs = ended.some((layer) => rows.differs(layer));
  // formats that came out as planned are said as they were planned, with how integers were found
  const done = ended.map((layer, at) => (differs ? outcomes[at]!.label : (rows.decision(layer)?.label ?? "–")));
  const isSingle = members.length === 1; // of several, what was planned is on hover
  const rules = [...new Set(decisions.map((decision) => decision?.rule ?? "global"))].filter(
    (rule) => rule !== "global",
  );
  const whys = [...new Set(outcomes.map(({ why }) => why).filter(Boolean))];
  const notes = [...new Set(outcomes.map(({ note }) => note).filter(Boolean))];
  const title = [
    `Planned: ${tally(planned)}`,
    done.length ? `Done: ${tally(done)}` : "",
    ...whys.map((why) => `Why: ${why}`),
    ...notes,
    rules.length ? `Set by ${rules.join(", ")}` : "",
  ];
  const dot = rules.length ? [make("span", { class: "pbb-ruled", "aria-hidden": "true" })] : [];
  const badges = [
    ...(!done.length || (differs && isSingle) ? badgesOf(planned, "planned") : []),
    ...(differs ? [make("span", { class: "pbb-dim", "aria-hidden": "true" }, isSingle ? "→" : "≠")] : []),
    ...badgesOf(done, "applied"),
  ];
  const parts = make("div", { class: "pbb-decided" }, ...dot, ...badges);
  return make("td", { title: title.filter(Boolean).join("\n"), "data-differs": String(differs) }, parts);
}

function nameCell(row: Row, rows: Rows, open: boolean, toggle: () => void): HTMLElement {
  const first = rows.data.layers[row.members[0]!]!;
  if (row.layer >= 0) {
    const kind = row.inside ? "pbb-name pbb-inside" : "pbb-name";
    return make("th", { scope: "row", class: kind, title: first.fqn }, first.fqn);
  }
  const pattern = rows.keyOf(row);
  const click = (event: Event): void => {
    event.stopPropagation();
    toggle();
  };
  const fold = make("span", { class: "pbb-fold", "aria-hidden": "true", click }, open ? "▾" : "▸");
  const count = make("span", { class: "pbb-times" }, `× ${row.members.length}`);
  return make("th", { scope: "row", class: "pbb-name pbb-group", title: pattern }, fold, make("b", {}, pattern), count);
}

function notesOf(column: LayerColumn, members: readonly number[]): string {
  const notes = members.map((layer) => column.notes[column.noted[layer] ?? -1] ?? "").filter(Boolean);
  const isKnown = members.some((layer) => (column.values[layer] ?? null) !== null);
  return common(notes) || (isKnown ? "" : "not known");
}

function numberCell(column: LayerColumn, members: readonly number[]): HTMLElement {
  const values = members.map((layer) => column.values[layer] ?? null);
  const known = values.filter((value): value is number => value !== null && !Number.isNaN(value));
  const low = shortNumber(known.length ? Math.min(...known) : null);
  const high = shortNumber(known.length ? Math.max(...known) : null);
  const title = notesOf(column, members);
  const kind = column.stale ? "pbb-number pbb-old-number" : "pbb-number";
  return make("td", { class: kind, title }, low === high ? low : `${low} – ${high}`);
}

/** A number over a bar; the longer the bar, the more the layer costs. */
function barCell(bar: Bars, row: Row, title: string, isOld: boolean): HTMLElement {
  const value = bar.worthOf(row);
  const share = value === null || bar.from === bar.to ? 0 : (value - bar.from) / (bar.to - bar.from);
  const fill = make("span", { class: "pbb-in-bar", style: `width:${Math.round(100 * Math.max(0, share))}%` });
  const number = make("span", {}, shortNumber(value));
  return make("td", { class: isOld ? "pbb-number pbb-old-number" : "pbb-number", title }, fill, number);
}

/** The cells of a row, in the order of the columns. */
export function cellsOf(
  row: Row,
  rows: Rows,
  columns: readonly Column[],
  open: boolean,
  toggle: () => void,
): HTMLElement[] {
  return columns.map((column) => cellOf(column, row, rows, open, toggle));
}

function cellOf({ key, bar }: Column, row: Row, rows: Rows, open: boolean, toggle: () => void): HTMLElement {
  const { members } = row;
  const words = (texts: readonly string[], kind: string, none = ""): HTMLElement => {
    const said = common(texts.filter(Boolean));
    return make("td", { class: kind, title: said }, said || none);
  };
  const decisions = members.map((layer) => rows.decision(layer));
  if (key === "name") return nameCell(row, rows, open, toggle);
  if (key === "planned") return decidedCell(row, rows);
  if (key === "parameters") return barCell(bar!, row, `${bar!.worthOf(row)} parameters`, false);
  if (key === "pruning")
    return words(
      members.map((layer) => pruningOf(layer, rows)),
      "pbb-note",
      "–",
    );
  if (key === "why")
    return words(
      members.map((layer) => rows.outcome(layer)?.why ?? ""),
      "pbb-note",
    );
  if (key === "type")
    return words(
      members.map((layer) => rows.data.layers[layer]!.type),
      "",
    );
  if (key === "rule") {
    const rules = decisions.map((decision) => (decision?.rule === "global" ? "default" : (decision?.rule ?? "")));
    return words(rules, "pbb-rule");
  }
  const column = rows.data.columns.find((each) => each.key === key)!;
  if (!bar) return numberCell(column, members);
  return barCell(bar, row, notesOf(column, members), column.stale !== "");
}

function spokenNumber({ title, unit, values, stale }: LayerColumn, layer: number): string {
  const value = values[layer] ?? null;
  return value === null ? `${title} unknown` : `${title} ${shortNumber(value)} ${unit}${stale ? ", old" : ""}`;
}

/** A row in words, for those who hear it. */
export function spoken(row: Row, rows: Rows): string {
  const first = rows.data.layers[row.members[0]!]!;
  const name = row.layer >= 0 ? first.fqn : `${rows.keyOf(row)}, ${counted(row.members.length, "layer")}`;
  const planned = common(row.members.map((layer) => rows.decision(layer)?.label ?? "unknown"));
  const outcomes = row.members.map((layer) => rows.outcome(layer)).filter((outcome) => outcome !== null);
  const applied = outcomes.length ? `, applied ${common(outcomes.map(({ label }) => label))}` : "";
  const why = common(outcomes.map((outcome) => outcome.why).filter(Boolean));
  const pruned = common(row.members.map((layer) => pruningOf(layer, rows)).filter(Boolean));
  const numbers = row.layer < 0 ? [] : rows.data.columns.map((column) => spokenNumber(column, row.layer));
  const pruning = pruned ? [`pruning ${pruned}`] : [];
  return [`${name}, planned ${planned}${applied}${why ? `: ${why}` : ""}`, ...pruning, ...numbers].join(", ");
}
