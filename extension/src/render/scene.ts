/**
 * Document and view in, visible boxes and edges out: what a diagram shows, before any layout.
 *
 * Python computes the same for pictures that are saved; golden files hold both to it.
 */

import type { Module, Node } from "../generated/document";
import { type Box, box, type Cluster, type Edge, type Marks, type Scene, type View } from "./boxes";
import { ENDS, type Item, type Lookup, lastName } from "./lookup";
import { neighbourhood, withReferences } from "./references";

export const BOXES = 36; // what a first view shows at most, unless failures lie deeper
const FORCED = 120; // and with the ways to failures opened, or where there is little to see else
const LITTLE = 8;
const UNVISITED = 6;
const OUTSIDE = "outside:";

/**
 * The visible part of a document.
 *
 * @param marks changes ("added", "removed", "changed") by node or module
 * @param distinct groups that are alike but get different texts here are not folded together
 */
export function makeScene(
  lookup: Lookup,
  view: View,
  marks: Marks = new Map(),
  distinct: (group: string) => string = () => "",
): Scene {
  return new Builder(lookup, view, marks, distinct).build();
}

class Builder {
  private readonly root: string;
  private readonly unfolded: Set<string>;
  private readonly marked = new Map<string, number>();
  private readonly drawn = new Map<string, string>(); // closed group -> its box
  private open = new Set<string>();

  constructor(
    private readonly lookup: Lookup,
    private readonly view: View,
    private readonly marks: Marks,
    private readonly distinct: (group: string) => string,
  ) {
    this.root = lookup.groups.has(view.root) ? view.root : "";
    this.unfolded = new Set(view.unfolded);
    if (marks.size) {
      for (const node of lookup.nodes.values()) {
        if (marks.has(node.id))
          for (const group of lookup.parents(node.group)) this.marked.set(group, (this.marked.get(group) ?? 0) + 1);
      }
    }
  }

  build(): Scene {
    this.open = this.view.open === null ? this.defaultExpansion() : new Set(this.view.open);
    for (const group of this.lookup.parents(this.root)) this.open.add(group);
    let root = this.cluster(this.root);
    const [found, ends] = this.edges();
    let edges = found;
    root = { ...root, members: [...root.members, ...ends] };
    if (this.view.around) [root, edges] = neighbourhood(root, edges, this.view.around, this.view.hops);
    [root, edges] = withReferences(root, edges);
    return {
      root,
      edges,
      counts: this.counts(),
      expanded: [...this.open].sort(byCode),
      title: this.lookup.document.model_type,
    };
  }

  private counts(): [string, number][] {
    const modules = this.lookup.document.modules;
    const counts = new Map<string, number>();
    for (const module of modules)
      if (module.fqn || module.status !== "traced" || modules.length === 1)
        counts.set(module.status, (counts.get(module.status) ?? 0) + 1);
    return ["failed", "leaf", "unvisited", "traced"].filter((s) => counts.has(s)).map((s) => [s, counts.get(s)!]);
  }

  // -- which groups are open

  /** Open level by level while it stays readable; the ways to failures first, and further. */
  private defaultExpansion(): Set<string> {
    const wanted = this.wanted();
    const opened = new Set([this.root]);
    let depth = this.view.depth;
    let visible = this.runs(this.root).length;
    const ends = this.runs(this.root).filter((run) => this.isEnd(run[0]!)).length;
    let level = [this.root];
    while (level.length) {
      depth -= 1;
      if (this.view.depth && depth < 1) break;
      const following: string[] = [];
      const inner = level.flatMap((parent) => this.runs(parent).filter((run) => run[0]!.isGroup));
      const runs = inner.filter((run) => !this.isEnd(run[0]!));
      // what stands alone is opened, or there would be nothing to see
      const lonely = runs.length === 1 && visible - ends <= LITTLE ? runs[0]![0]!.id : "";
      const ordered = [
        ...runs.filter((run) => wanted.has(run[0]!.id)),
        ...runs.filter((run) => !wanted.has(run[0]!.id)),
      ];
      for (const run of ordered) {
        const group = run[0]!.id;
        const budget = wanted.has(group) || group === lonely || this.view.depth ? FORCED : BOXES;
        if (visible + this.more(run) <= budget) {
          opened.add(group);
          visible += this.more(run);
          following.push(group);
        }
      }
      level = following;
    }
    return opened;
  }

  /** How many boxes more there are when the first group of a run is opened. */
  private more(run: Item[]): number {
    return this.runs(run[0]!.id).length - 1 + (run.length > 1 ? 1 : 0);
  }

  private operations(group: string): number {
    return this.lookup.operations.get(group) ?? 0;
  }

  /** Whether it is an input, an output, or a group of inputs. */
  private isEnd(item: Item): boolean {
    return item.isGroup ? !this.operations(item.id) : ENDS.has(this.lookup.nodes.get(item.id)!.op);
  }

  private wanted(): Set<string> {
    const wanted = new Set<string>();
    const troubled = (status: string): boolean => status === "failed" || status === "leaf";
    for (const group of this.lookup.groups.values()) {
      const status = group.label ? "traced" : this.status(group.fqn);
      if (troubled(status) && group.id) for (const parent of this.lookup.parents(group.id).slice(1)) wanted.add(parent);
      if (status === "failed") wanted.add(group.id);
    }
    for (const node of this.lookup.nodes.values())
      if (troubled(node.status)) for (const parent of this.lookup.parents(node.group)) wanted.add(parent);
    return wanted;
  }

  /** The members of a group; closed groups that are alike and follow each other are one run. */
  private runs(group: string): Item[][] {
    const runs: Item[][] = [];
    let last: string | null = null;
    for (const item of this.lookup.items.get(group)!) {
      const key = item.isGroup && !this.open.has(item.id) ? this.foldKey(item.id) : null;
      if (key !== null && key === last && !this.unfolded.has(group)) runs[runs.length - 1]!.push(item);
      else runs.push([item]);
      last = key;
    }
    return runs;
  }

  private foldKey(group: string): string | null {
    const alike = this.lookup.groups.get(group)!.alike;
    return alike ? `${alike} ${this.marked.get(group) ?? 0} ${this.distinct(group)}` : null;
  }

  // -- boxes

  private cluster(group: string): Cluster {
    const { fqn, call, label } = this.lookup.groups.get(group)!;
    const module = label ? undefined : this.lookup.modules.get(fqn);
    const members: (Box | Cluster)[] = [];
    for (const run of this.runs(group)) {
      const first = run[0]!;
      if (!first.isGroup) members.push(this.nodeBox(this.lookup.nodes.get(first.id)!));
      else if (this.open.has(first.id)) members.push(this.cluster(first.id));
      else {
        const groups = run.map((item) => item.id);
        const box = groups.length > 1 ? this.foldBox(groups) : this.moduleBox(first.id);
        members.push(box);
        for (const id of groups) this.drawn.set(id, box.id);
      }
    }
    members.push(...this.unvisited(group));
    const status = label ? "traced" : this.status(fqn);
    if (group === "" && status === "failed")
      members.unshift(
        box({
          id: "module:",
          kind: "note",
          title: this.lookup.document.model_type,
          subtitle: "the model itself",
          detail: reason(module),
          status: "failed",
        }),
      );
    const name = this.name(group);
    const title = module && name ? `${name} · ${module.type}` : name;
    const calls = label ? "" : this.calls(fqn, call);
    return { id: group, fqn, title: calls ? `${title} ↻ ${calls}` : title, status, members };
  }

  private nodeBox(node: Node): Box {
    const standsForModule = node.op === "call_module" || node.fqn !== this.lookup.groups.get(node.group!)!.fqn;
    const module = standsForModule ? this.lookup.modules.get(node.fqn) : undefined;
    let detail = node.shapes.slice(0, 2).join(" ") + (node.shapes.length > 2 ? " …" : "");
    if (node.status === "failed" || node.status === "leaf")
      detail = reason(this.lookup.modules.get(node.fqn)) || detail;
    return box({
      id: node.id,
      kind: node.op === "placeholder" ? "input" : node.op === "output" ? "output" : "node",
      title: (module && this.relative(module.fqn, node.group)) || node.label,
      subtitle: module?.type ?? "",
      detail,
      status: node.status,
      fqn: module ? module.fqn : node.fqn,
      calls: module ? this.calls(module.fqn, node.call) : "",
      change: this.marks.get(node.id) ?? "",
    });
  }

  private moduleBox(group: string): Box {
    const { fqn, call, label } = this.lookup.groups.get(group)!;
    const module = label ? undefined : this.lookup.modules.get(fqn);
    const status = module?.status ?? "traced";
    return box({
      id: `module:${group}`,
      kind: "module",
      title: this.name(group),
      subtitle: module?.type ?? "",
      detail: status === "failed" || status === "leaf" ? reason(module) : this.content(group),
      status,
      fqn,
      inside: module ? [...(this.lookup.inside.get(fqn) ?? [])].sort((a, b) => byCode(a[0], b[0])) : [],
      calls: module ? this.calls(fqn, call) : "",
      change: this.marked.get(group) ? "changed" : "",
    });
  }

  private content(group: string): string {
    const operations = this.operations(group);
    return operations ? counted(operations, "operation") : counted(this.lookup.items.get(group)!.length, "input");
  }

  private foldBox(run: string[]): Box {
    const shown = this.moduleBox(run[0]!);
    const groups = run.map((group) => this.lookup.groups.get(group)!);
    const names = groups.map((group) => this.name(group.id));
    const [first, last] = [names[0]!, names[names.length - 1]!];
    // parts have ranges as names already
    const range = `${first.split(" … ")[0]} … ${last.split(" … ").at(-1)}`;
    const title = new Set(names).size === 1 ? first : range;
    const isReused = new Set(groups.map((group) => group.fqn)).size === 1 && !groups[0]!.label;
    const detail = `${isReused ? "↻" : "×"} ${run.length}, ${shown.detail} each`;
    return { ...shown, id: `fold:${run[0]}`, kind: "fold", title, detail, folded: run, calls: "" };
  }

  private name(group: string): string {
    const { fqn, parent, label } = this.lookup.groups.get(group)!;
    return label || this.relative(fqn, parent);
  }

  /** Modules right here that were never called; at most a few, the others as a number. */
  private unvisited(group: string): Box[] {
    const { fqn: here, call, label } = this.lookup.groups.get(group)!;
    if (call > 1 || label) return [];
    const missing = this.lookup.unvisited.get(here) ?? [];
    const boxes = missing.slice(0, UNVISITED).map((fqn) =>
      box({
        id: `unvisited:${fqn}`,
        kind: "node",
        title: lastName(fqn),
        subtitle: this.lookup.modules.get(fqn)!.type,
        detail: "never called",
        status: "unvisited",
        fqn,
      }),
    );
    if (missing.length > UNVISITED)
      boxes.push(
        box({
          id: `note:${here}`,
          kind: "note",
          title: `+${missing.length - UNVISITED} not reached`,
          status: "unvisited",
          fqn: here,
        }),
      );
    return boxes;
  }

  /** A module's name inside the group that it is drawn in. */
  private relative(fqn: string, around: string | null): string {
    const outer = around === null ? "" : this.lookup.groups.get(around)!.fqn;
    return outer && fqn.startsWith(`${outer}.`) ? fqn.slice(outer.length + 1) : fqn;
  }

  private status(fqn: string): string {
    return this.lookup.modules.get(fqn)?.status ?? "traced";
  }

  private calls(fqn: string, call: number): string {
    const module = this.lookup.modules.get(fqn);
    return module && module.calls > 1 ? `${call}/${module.calls}` : "";
  }

  // -- edges

  /**
   * Edges between what is visible, each once, and a box for each value that comes from or goes to what lies outside.
   * Sizes and other numbers are no data flow: what they are read from is not drawn.
   */
  private edges(): [Edge[], Box[]] {
    const shown = new Map<string, string>();
    for (const group of this.lookup.groups.keys()) shown.set(group, this.representative(group));
    const where = new Map<string, string>();
    for (const node of this.lookup.nodes.values()) where.set(node.id, shown.get(node.group!) || node.id);
    const edges = new Map<string, Edge>();
    const ends = new Map<string, Box>();
    for (const node of this.lookup.nodes.values()) {
      for (const source of node.inputs) {
        let start = where.get(source);
        let end = where.get(node.id)!;
        if (start === undefined || start === end) continue;
        if (start === OUTSIDE) start = this.end(ends, `from:${source}`, "◄", source);
        if (end === OUTSIDE) end = this.end(ends, `to:${start}`, "►", node.id);
        edges.set(`${start}\n${end}`, [start, end]);
      }
    }
    return [[...edges.values()], [...ends.values()]];
  }

  private end(ends: Map<string, Box>, id: string, arrow: string, nodeId: string): string {
    const node = this.lookup.nodes.get(nodeId)!;
    if (!ends.has(id))
      ends.set(id, box({ id, kind: "reference", title: `${arrow} ${node.fqn || node.label}`, fqn: node.fqn }));
    return id;
  }

  /** The box that stands for what lies directly in a group; "" where that is drawn itself. */
  private representative(group: string): string {
    const around = this.lookup.parents(group);
    const at = around.indexOf(this.root);
    if (at < 0) return OUTSIDE;
    for (let i = at - 1; i >= 0; i--) {
      const drawn = this.drawn.get(around[i]!);
      if (drawn !== undefined) return drawn;
    }
    return "";
  }
}

/** The order of Python's strings: by code point. */
export function byCode(a: string, b: string): number {
  const [first, second] = [[...a], [...b]];
  for (let i = 0; i < Math.min(first.length, second.length); i++) {
    const difference = first[i]!.codePointAt(0)! - second[i]!.codePointAt(0)!;
    if (difference) return difference;
  }
  return first.length - second.length;
}

function counted(number: number, noun: string): string {
  return `${number} ${noun}${number !== 1 ? "s" : ""}`;
}

function reason(module: Module | undefined): string {
  return module?.failure?.kind ?? "";
}
