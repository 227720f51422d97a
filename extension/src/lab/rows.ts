/** The tree of modules as lists of numbers; what to show of it is decided here. */
import type { TreeRow } from "../render";

/** One module with its place in the tree. */
export interface Item {
  readonly row: TreeRow;
  /** Its name within its parent. */
  readonly name: string;
  /** Index of the parent; -1 for a root. */
  readonly parent: number;
  /** Index after the last module below it. */
  end: number;
  /** Its place among its siblings, from 1. */
  readonly position: number;
  /** How many children it has. */
  children: number;
}

const OPEN_LEVELS = 2;

/** Finds parents and subtrees by the depths of rows that are in order. */
export function hierarchy(rows: readonly TreeRow[]): Item[] {
  const items: Item[] = [];
  const way: number[] = [];
  const top = { children: 0 };
  const close = (depth: number, end: number): void => {
    for (let last = items[way.at(-1) ?? -1]; last && last.row.depth >= depth; last = items[way.at(-1) ?? -1]) {
      last.end = end;
      way.pop();
    }
  };
  rows.forEach((row, index) => {
    close(row.depth, index);
    const parent = way.at(-1) ?? -1;
    const above = items[parent];
    const siblings = above ?? top;
    siblings.children += 1;
    const position = siblings.children;
    items.push({ row, name: nameOf(row, above?.row.fqn ?? ""), parent, end: index + 1, position, children: 0 });
    way.push(index);
  });
  close(-Infinity, rows.length);
  return items;
}

function nameOf(row: TreeRow, parent: string): string {
  if (row.fqn === "") return "";
  return parent !== "" && row.fqn.startsWith(`${parent}.`) ? row.fqn.slice(parent.length + 1) : row.fqn;
}

/** The modules that are open before anything was clicked: the first levels, and the ways to failures. */
export function openAtFirst(items: readonly Item[]): Set<number> {
  const open = new Set<number>();
  items.forEach(({ row }, index) => {
    if (row.depth < OPEN_LEVELS) open.add(index);
    if (isFailure(row)) openWay(items, index, open);
  });
  return open;
}

export function isFailure(row: TreeRow): boolean {
  return row.status === "failed" || row.reason !== "";
}

/** Opens everything above a module. */
export function openWay(items: readonly Item[], index: number, open: Set<number>): void {
  for (let at = items[index]?.parent ?? -1; at >= 0; at = items[at]?.parent ?? -1) open.add(at);
}

/** The modules that match a query, with all above them; null without a query. */
export function matching(items: readonly Item[], query: string): Set<number> | null {
  const wanted = query.trim().toLowerCase();
  if (wanted === "") return null;
  const kept = new Set<number>();
  items.forEach(({ row }, index) => {
    const texts = [row.fqn, row.type, row.status, row.reason];
    if (!texts.some((text) => text.toLowerCase().includes(wanted))) return;
    for (let at = index; at >= 0 && !kept.has(at); at = items[at]?.parent ?? -1) kept.add(at);
  });
  return kept;
}

/** The modules to show, in order. */
export function visible(items: readonly Item[], open: ReadonlySet<number>, kept: ReadonlySet<number> | null): number[] {
  const shown: number[] = [];
  for (let index = 0; index < items.length; ) {
    const item = items[index];
    if (!item) break;
    if (kept === null || kept.has(index)) shown.push(index);
    const inside = kept === null ? open.has(index) : kept.has(index);
    index = inside ? index + 1 : item.end;
  }
  return shown;
}

/** The index of a module, or of the module that an operation is in; -1 if there is none. */
export function indexOf(byName: ReadonlyMap<string, number>, fqn: string): number {
  for (let name = fqn; name !== ""; name = name.slice(0, Math.max(name.lastIndexOf("."), name.lastIndexOf("/"), 0))) {
    const index = byName.get(name);
    if (index !== undefined) return index;
  }
  return byName.get("") ?? -1;
}
