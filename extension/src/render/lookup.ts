/** A document prepared for drawing: what lies in which group, in the order in which it runs. */

import type { GraphCollectionDocument, Group, Module, Node, Size, SourceLine } from "../generated/document";

export interface Item {
  id: string;
  isGroup: boolean;
}

/** Inputs and outputs, which are no operations. */
export const ENDS: ReadonlySet<string> = new Set(["placeholder", "output"]);

/** `"a.b.c"` gives `["a", "a.b", "a.b.c"]`. */
export function prefixes(fqn: string): string[] {
  const parts = fqn ? fqn.split(".") : [];
  return parts.map((_, i) => parts.slice(0, i + 1).join("."));
}

export function lastName(fqn: string): string {
  return fqn.slice(fqn.lastIndexOf(".") + 1);
}

export class Lookup {
  readonly modules: Map<string, Module>;
  readonly groups: Map<string, Group>;
  /** What is drawn, in order. */
  readonly nodes = new Map<string, Node>();
  readonly items = new Map<string, Item[]>();
  readonly operations = new Map<string, number>();
  /** For a module: how many failed modules and leaf modules it holds. */
  readonly inside = new Map<string, Map<string, number>>();
  readonly unvisited = new Map<string, string[]>();
  private consumersOf: Map<string, string[]> | null = null;

  constructor(readonly document: GraphCollectionDocument) {
    this.modules = new Map(document.modules.map((module) => [module.fqn, module]));
    this.groups = new Map(document.groups.map((group) => [group.id, group]));
    for (const id of this.groups.keys()) this.items.set(id, []);
    this.arrange();
    this.countTroubles();
  }

  /** The group and those around it, from the inside out. */
  parents(group: string | null): string[] {
    const found: string[] = [];
    for (let at = group; at !== null; at = this.groups.get(at)!.parent) found.push(at);
    return found;
  }

  /** The lines around one of the user's; "" where they are not known. */
  frameOf(source: SourceLine | null): string {
    return (
      (source &&
        this.document.frames.find(
          (frame) => frame.file === source.file && frame.line === source.line && frame.text.includes(source.code),
        )?.text) ??
      ""
    );
  }

  /** What the names in shapes stand for, and the names in these formulas, in the order of the document. */
  sizesIn(shapes: Iterable<string>): Size[] {
    const all = new Map(this.document.sizes.map((size) => [size.name, size]));
    const found = new Set<string>();
    const waiting = [...shapes];
    for (let text = waiting.pop(); text !== undefined; text = waiting.pop()) {
      for (const [name] of text.matchAll(/[A-Za-z_]\w*/g)) {
        const size = all.get(name);
        if (!size || found.has(name)) continue;
        found.add(name);
        waiting.push(size.meaning);
      }
    }
    return this.document.sizes.filter((size) => found.has(size.name));
  }

  /** Ids of the drawn nodes that use a node's value. */
  consumers(id: string): string[] {
    if (!this.consumersOf) {
      this.consumersOf = new Map();
      for (const node of this.nodes.values()) for (const source of node.inputs) push(this.consumersOf, source, node.id);
    }
    return this.consumersOf.get(id) ?? [];
  }

  private arrange(): void {
    const placed = new Set([""]);
    for (const graph of this.document.graphs) {
      for (const node of graph.nodes) {
        if (node.group === null) continue;
        this.nodes.set(node.id, node);
        const around = this.parents(node.group);
        for (let i = 0; i + 1 < around.length && !placed.has(around[i]!); i++) {
          placed.add(around[i]!);
          this.items.get(around[i + 1]!)!.push({ id: around[i]!, isGroup: true });
        }
        this.items.get(node.group)!.push({ id: node.id, isGroup: false });
        if (ENDS.has(node.op)) continue;
        for (const group of around) this.operations.set(group, (this.operations.get(group) ?? 0) + 1);
      }
    }
  }

  private countTroubles(): void {
    const called = new Set<string>();
    for (const module of this.document.modules)
      if (module.status !== "unvisited") for (const outer of prefixes(module.fqn).slice(0, -1)) called.add(outer);
    for (const module of this.document.modules) {
      const outer = prefixes(module.fqn).slice(0, -1);
      if (module.status === "failed" || module.status === "leaf") {
        for (const fqn of outer) {
          const counts = this.inside.get(fqn) ?? new Map<string, number>();
          counts.set(module.status, (counts.get(module.status) ?? 0) + 1);
          this.inside.set(fqn, counts);
        }
      }
      if (module.status === "unvisited" && module.fqn && !called.has(module.fqn))
        push(this.unvisited, outer[outer.length - 1] ?? "", module.fqn);
    }
  }
}

export function push<K, V>(map: Map<K, V[]>, key: K, value: V): void {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}
