/** The layers of the table as columns of plain values: filtered, sorted and grouped without touching the page. */

import type { Decision, LayerColumn, LayerFacts, Outcome } from "../generated/widgets";
import { readQuery, type Status } from "./filters";
import { Patterns, patternOf } from "./patterns";

export interface TableData {
  layers: readonly LayerFacts[];
  decisions: readonly Decision[];
  planned: readonly number[];
  outcomes: readonly Outcome[];
  applied: readonly number[];
  columns: readonly LayerColumn[];
}

/** What the table is asked to show. */
export interface Asked {
  text: string;
  type: string;
  status: Status;
  sort: string;
  down: boolean;
  grouping: Grouping;
  open: ReadonlySet<string>;
}

/** A row: one layer, or several. */
export interface Row {
  layer: number;
  /** Names the group. */
  group: string;
  members: readonly number[];
  /** Whether the row is a layer below the row of its group. */
  inside: boolean;
}

const DIGITS = /\d+/g;

/** How layers become rows: each its own, those of one role (names that differ in indices only), those of one block. */
export type Grouping = "" | "role" | "block";

/** Whether the outcome of a layer has other formats than planned; how its integers were found is no difference. */
export function departs(planned: Decision | null, done: Outcome | null): boolean {
  return done !== null && done.label !== (planned?.formats || planned?.label);
}

export class Rows {
  private readonly lower: readonly string[];
  private readonly lowerTypes: readonly string[];
  private readonly names: readonly string[];
  private readonly groups = new Map<Grouping, readonly string[]>();
  private readonly found = new Map<string, string>();
  private typed = "";
  private readonly patterns: Patterns;
  private byName: Float64Array | null = null;
  data: TableData;

  constructor(data: TableData) {
    this.data = data;
    this.lower = data.layers.map(({ fqn }) => fqn.toLowerCase());
    this.lowerTypes = data.layers.map(({ type }) => type.toLowerCase());
    this.names = data.layers.map(({ fqn }) => fqn);
    this.patterns = new Patterns(this.names);
  }

  /** The group of each layer: its name, its role with its type, or its block. */
  private groupsBy(grouping: Grouping): readonly string[] {
    let groups = this.groups.get(grouping);
    if (groups) return groups;
    if (grouping === "role") groups = this.data.layers.map(({ fqn, type }) => `${patternOf(fqn)} ${type}`);
    else if (grouping === "block") groups = this.names.map((name, layer) => this.patterns.blocks[layer] || name);
    else groups = this.names;
    this.groups.set(grouping, groups);
    return groups;
  }

  /** How many rows there are when every group is closed. */
  groupCount(grouping: Grouping): number {
    return new Set(this.groupsBy(grouping)).size;
  }

  groupOf(layer: number, grouping: Grouping): string {
    return this.groupsBy(grouping)[layer] ?? "";
  }

  /** The key of a rule for exactly the layers of a row; several where no one key does. */
  keyOf({ members, group }: Row): string {
    const id = `${this.typed} ${group} ${members.length} ${members.reduce((sum, layer) => (31 * sum + layer) | 0, 0)}`;
    const known = this.found.get(id);
    if (known !== undefined) return known;
    const key = this.patternsFor(new Set(members), this.typed).join(", ");
    this.found.set(id, key);
    return key;
  }

  decision(layer: number): Decision | null {
    return this.data.decisions[this.data.planned[layer] ?? -1] ?? null;
  }

  outcome(layer: number): Outcome | null {
    return this.data.outcomes[this.data.applied[layer] ?? -1] ?? null;
  }

  differs(layer: number): boolean {
    return departs(this.decision(layer), this.outcome(layer));
  }

  /** The layers that fit, in their order. */
  fitting({ text, type, status }: Pick<Asked, "text" | "type" | "status">): number[] {
    const query = readQuery(text);
    const fits: number[] = [];
    for (let layer = 0; layer < this.lower.length; layer++) {
      if (type && this.data.layers[layer]!.type !== type) continue;
      if (status !== "all" && !this.has(layer, status)) continue;
      if (query.fits(this.lower[layer]!, this.lowerTypes[layer]!)) fits.push(layer);
    }
    return fits;
  }

  sorted(layers: readonly number[], sort: string, down: boolean): number[] {
    const keys = this.keys(sort);
    if (!keys) return down ? [...layers].reverse() : [...layers];
    const sign = down ? -1 : 1;
    return [...layers].sort((a, b) => {
      const [first, second] = [keys[a]!, keys[b]!];
      if (first === second) return a - b;
      if (Number.isNaN(first)) return Number.isNaN(second) ? a - b : 1; // what is unknown comes last, either way
      if (Number.isNaN(second)) return -1;
      return sign * (first - second);
    });
  }

  /** The rows to show. A group stands where the first of its members would. */
  rows(asked: Asked): Row[] {
    this.typed = asked.text;
    const layers = this.sorted(this.fitting(asked), asked.sort, asked.down);
    const groups = this.groupsBy(asked.grouping);
    if (!asked.grouping) return layers.map((layer) => single(layer, groups[layer]!, false));
    const members = new Map<string, number[]>();
    for (const layer of layers) {
      const group = groups[layer]!;
      const others = members.get(group);
      if (others) others.push(layer);
      else members.set(group, [layer]);
    }
    const rows: Row[] = [];
    for (const [group, found] of members) {
      if (found.length === 1) rows.push(single(found[0]!, group, false));
      else {
        rows.push({ layer: -1, group, members: found, inside: false });
        if (asked.open.has(group)) for (const layer of found) rows.push(single(layer, group, true));
      }
    }
    return rows;
  }

  /** Few keys of rules that stand for exactly these layers; what is typed, if it does. */
  patternsFor(layers: ReadonlySet<number>, typed = ""): string[] {
    const keys = this.patterns.patternsFor(layers, readQuery(typed).keys);
    if (keys.length <= 1) return keys;
    const type = this.data.layers[[...layers][0]!]!.type; // a class is the key of its layers, too
    const isWhole = this.data.layers.every((layer, at) => (layer.type === type) === layers.has(at));
    return isWhole && !this.names.includes(type) ? [type] : keys;
  }

  private has(layer: number, status: Status): boolean {
    if (status === "differs") return this.differs(layer);
    const decision = this.decision(layer);
    if (status === "rule") return decision !== null && decision.rule !== "global";
    return decision?.quantized === (status === "quantized");
  }

  /** What to sort by, as numbers; null for the order of the model. */
  private keys(sort: string): Float64Array | null {
    const { layers, decisions, planned, outcomes, applied, columns } = this.data;
    if (sort === "name") {
      this.byName ??= ranks(layers.map(({ fqn }) => fqn.replace(DIGITS, (digits) => digits.padStart(8, "0"))));
      return this.byName;
    }
    if (sort === "parameters") return Float64Array.from(layers, ({ parameters }) => parameters);
    if (sort === "type") return ranks(this.lowerTypes);
    if (sort === "planned") return looked(ranks(decisions.map(({ label }) => label)), planned, layers.length);
    if (sort === "pruning") return looked(ranks(decisions.map(({ pruning }) => pruning)), planned, layers.length);
    if (sort === "rule") return looked(ranks(decisions.map(({ rule }) => rule)), planned, layers.length);
    if (sort === "applied") return looked(ranks(outcomes.map(({ label }) => label)), applied, layers.length);
    if (sort === "why") return looked(ranks(outcomes.map(({ why }) => why)), applied, layers.length);
    const column = columns.find(({ key }) => key === sort);
    return column ? Float64Array.from(layers, (_, layer) => column.values[layer] ?? Number.NaN) : null;
  }
}

function single(layer: number, group: string, inside: boolean): Row {
  return { layer, group, members: [layer], inside };
}

/** For each text its place in the order of all; "" has none. */
function ranks(texts: readonly string[]): Float64Array {
  const order = new Map([...new Set(texts)].sort().map((text, rank) => [text, rank]));
  return Float64Array.from(texts, (text) => (text === "" ? Number.NaN : order.get(text)!));
}

function looked(keys: Float64Array, places: readonly number[], length: number): Float64Array {
  return Float64Array.from({ length }, (_, layer) => keys[places[layer] ?? -1] ?? Number.NaN);
}

/** The numbers of a list in which a number below zero tells how often the next one comes. */
export function withoutRuns(numbers: readonly number[]): number[] {
  const all: number[] = [];
  for (let at = 0; at < numbers.length; at++) {
    const count = Math.max(1, -numbers[at]!);
    if (numbers[at]! < 0) at++;
    for (let n = 0; n < count; n++) all.push(numbers[at]!);
  }
  return all;
}
