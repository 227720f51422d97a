/** The layers of the table as columns of plain values: filtered, sorted and grouped without touching the page. */

import type { Decision, LayerColumn, LayerFacts, Outcome } from "../generated/widgets";
import { globToRegExp, readQuery, type Status } from "./filters";

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
  grouped: boolean;
  open: ReadonlySet<string>;
}

/** A row: one layer, or several of one type whose names differ in indices only. */
export interface Row {
  layer: number;
  /** Names the group: pattern and type. */
  group: string;
  members: readonly number[];
  /** Whether the row is a layer below the row of its group. */
  inside: boolean;
}

const INDEX = /(^|\.)\d+(?=\.|$)/g;
const DIGITS = /\d+/g;
const MOST_CHECKS = 300; // of patterns in one choice, each against all layers

/** The name with `*` for every index. */
export function patternOf(fqn: string): string {
  return fqn.replace(INDEX, "$1*");
}

export class Rows {
  private readonly lower: readonly string[];
  private readonly lowerTypes: readonly string[];
  private readonly patterns: readonly string[];
  private readonly groups = new Map<string, number[]>();
  private names: Float64Array | null = null;
  data: TableData;

  constructor(data: TableData) {
    this.data = data;
    this.lower = data.layers.map(({ fqn }) => fqn.toLowerCase());
    this.lowerTypes = data.layers.map(({ type }) => type.toLowerCase());
    this.patterns = data.layers.map(({ fqn, type }) => `${patternOf(fqn)} ${type}`);
    this.patterns.forEach((pattern, layer) => {
      const members = this.groups.get(pattern);
      if (members) members.push(layer);
      else this.groups.set(pattern, [layer]);
    });
  }

  /** How many rows there are when every group is closed. */
  get groupCount(): number {
    return this.groups.size;
  }

  groupOf(layer: number): string {
    return this.patterns[layer] ?? "";
  }

  decision(layer: number): Decision | null {
    return this.data.decisions[this.data.planned[layer] ?? -1] ?? null;
  }

  outcome(layer: number): Outcome | null {
    return this.data.outcomes[this.data.applied[layer] ?? -1] ?? null;
  }

  differs(layer: number): boolean {
    const outcome = this.outcome(layer);
    return outcome !== null && (outcome.why !== "" || outcome.label !== this.decision(layer)?.label);
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
    const layers = this.sorted(this.fitting(asked), asked.sort, asked.down);
    if (!asked.grouped) return layers.map((layer) => single(layer, this.groupOf(layer), false));
    const members = new Map<string, number[]>();
    for (const layer of layers) {
      const group = this.patterns[layer]!;
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

  /** Few patterns that stand for exactly these layers: globs for whole groups where they fit no other layer. */
  patternsFor(layers: ReadonlySet<number>): string[] {
    if (layers.size === this.data.layers.length && layers.size > 1) return ["*"];
    const found: string[] = [];
    let checks = MOST_CHECKS;
    for (const members of this.groups.values()) {
      const chosen = members.filter((layer) => layers.has(layer));
      const isWhole = chosen.length === members.length && members.length > 1;
      const pattern = isWhole && checks-- > 0 ? patternOf(this.data.layers[members[0]!]!.fqn) : "";
      if (pattern && this.isExact(pattern, members.length)) found.push(pattern);
      else found.push(...chosen.map((layer) => this.data.layers[layer]!.fqn));
    }
    return found;
  }

  private isExact(pattern: string, count: number): boolean {
    if (/[?[\]]/.test(pattern)) return false;
    const glob = globToRegExp(pattern);
    return this.data.layers.reduce((fitting, { fqn }) => fitting + Number(glob.test(fqn)), 0) === count;
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
      this.names ??= ranks(layers.map(({ fqn }) => fqn.replace(DIGITS, (digits) => digits.padStart(8, "0"))));
      return this.names;
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
