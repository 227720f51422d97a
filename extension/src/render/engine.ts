/** Everything about documents that needs no page: runs in a worker, so that a large document never blocks the page. */

import type { DiagramDocument, Overlay, Size } from "../generated/document";
import type { Source, TreeRow } from "./api";
import { allBoxes, type Box, type Cluster, type Edge, FIRST_VIEW, isCluster, type Scene, type View } from "./boxes";
import { type Details, details, groupOf, tree } from "./details";
import { clusterNames, type Painted, toDot } from "./dot";
import { Lookup } from "./lookup";
import { OverlayValues, paint, type Swatch } from "./overlay";
import { read } from "./read";
import { makeScene } from "./scene";
import { type Hit, search } from "./search";

/** What a document is, before anything is drawn. */
export interface Summary {
  arrangement: "levels" | "compare";
  documents: { title: string; model: string; level: string; operations: number; marks: number }[];
  overlays: string[];
  overlay: string;
}

/** A failed module or a leaf module, for the list beside the diagram. */
export interface Trouble {
  id: string;
  fqn: string;
  type: string;
  status: string;
  reason: string;
  remedy: string;
  place: string;
}

/** All that a page needs to draw a view. */
export interface Drawing {
  dot: string;
  compact: string;
  boxes: Box[];
  clusters: { name: string; id: string; fqn: string; title: string }[];
  edges: Edge[];
  counts: [string, number][];
  /** What the names in the shapes of these boxes stand for. */
  sizes: Size[];
  /** Ids of the open groups. */
  open: string[];
  /** How many boxes there are. */
  size: number;
  legend: Swatch[];
  rule: string;
  painted: [string, Painted][];
}

interface Part {
  lookup: Lookup;
  title: string;
  marks: Map<string, string>;
  notes: Map<string, string>;
  overlays: OverlayValues[] /** The overlay that was drawn last; it keeps apart what else would be folded. */;
  overlay: string;
}

const OPENED = 300;

export class Engine {
  private diagram: DiagramDocument | null = null;
  private parts: Part[] = [];

  async load(source: Source): Promise<Summary> {
    this.diagram = null;
    this.parts = [];
    const diagram = await read(source);
    this.parts = diagram.documents.map((document, i) => {
      const lookup = new Lookup(document);
      const own = diagram.marks.filter((mark) => mark.document === i);
      return {
        lookup,
        title: diagram.titles[i] ?? (document.level === "aten" ? "ATen graph" : "module graph"),
        marks: new Map(own.map((mark) => [mark.id, mark.change])),
        notes: new Map(own.map((mark) => [mark.id, mark.note])),
        overlays: diagram.overlays.map((overlay) => new OverlayValues(overlay, lookup)),
        overlay: "",
      };
    });
    this.diagram = diagram;
    return this.summary();
  }

  /** Replaces the overlays. */
  setOverlays(overlays: Overlay[]): Summary {
    for (const part of this.parts) part.overlays = overlays.map((overlay) => new OverlayValues(overlay, part.lookup));
    if (this.diagram) this.diagram = { ...this.diagram, overlays };
    return this.summary();
  }

  private summary(): Summary {
    const diagram = this.diagram!;
    return {
      arrangement: diagram.arrangement,
      documents: this.parts.map((part) => ({
        title: part.title,
        model: part.lookup.document.model_type,
        level: part.lookup.document.level,
        operations: part.lookup.operations.get("") ?? 0,
        marks: part.marks.size,
      })),
      overlays: diagram.overlays.map((overlay) => overlay.name),
      overlay: diagram.overlay,
    };
  }

  /** What is shown, as JSON text, with the overlays of now. */
  text(): string {
    return JSON.stringify(this.diagram);
  }

  draw(part: number, view: View, overlay: string): Drawing {
    const { lookup } = this.part(part);
    this.part(part).overlay = overlay;
    const values = this.values(part);
    const scene = this.scene(part, view);
    const painted = values ? paint(scene, values, lookup) : { boxes: new Map<string, Painted>(), legend: [], rule: "" };
    const boxes = [...allBoxes(scene.root)];
    return {
      dot: toDot(scene, { painted: painted.boxes }),
      compact: toDot(scene, { painted: painted.boxes, compact: true }),
      boxes,
      clusters: [...clusterNames(scene.root)].map(([name, cluster]) => ({
        name,
        id: cluster.id,
        fqn: cluster.fqn,
        title: lookup.groups.get(cluster.id)!.label ? `${cluster.fqn} ${cluster.title}`.trim() : cluster.fqn,
      })),
      edges: scene.edges,
      counts: scene.counts,
      sizes: lookup.sizesIn(boxes.map((box) => box.detail)),
      open: scene.expanded,
      size: boxes.length,
      legend: painted.legend,
      rule: painted.rule,
      painted: [...painted.boxes],
    };
  }

  details(part: number, ids: string[]): Details[] {
    const { lookup, overlays, notes } = this.part(part);
    return ids.map((id) => details(lookup, id, overlays, notes.get(id) ?? "")).filter((each) => each !== null);
  }

  search(part: number, query: string): Hit[] {
    return search(this.part(part).lookup, query);
  }

  tree(part: number): TreeRow[] {
    return tree(this.part(part).lookup);
  }

  troubles(part: number): Trouble[] {
    const { lookup } = this.part(part);
    const found = lookup.document.modules
      .filter((module) => module.status === "failed" || module.status === "leaf")
      .filter((module) => module.failure || module.status === "failed");
    return found.map((module) => ({
      id: this.idOf(lookup, module.fqn) ?? "",
      fqn: module.fqn,
      type: module.type,
      status: module.status,
      reason: module.failure?.kind ?? "",
      remedy: module.failure?.remedy ?? "",
      place: module.failure?.source ? `${module.failure.source.file}:${module.failure.source.line}` : "",
    }));
  }

  /** What the graph assumes, one sentence each. */
  findings(part: number): string[] {
    return this.part(part).lookup.document.findings.map(({ fqn, message, remedy }) =>
      [fqn ? `${fqn}: ${message}` : message, remedy].filter(Boolean).join(" "),
    );
  }

  /** Opens or closes what a box stands for. An operation closes its module; several alike open the first of them. */
  toggle(part: number, view: View, id: string): View {
    const { lookup } = this.part(part);
    const open = this.opened(part, view);
    let group = groupOf(lookup, id);
    if (group === null) group = lookup.nodes.get(id)?.group ?? null;
    if (group === null || group === "") return view;
    if (open.has(group)) return { ...view, open: [...open].filter((other) => !lookup.parents(other).includes(group)) };
    for (let inner: string | undefined = group; inner !== undefined; inner = this.onlyGroup(lookup, inner))
      open.add(inner);
    return { ...view, open: [...open] };
  }

  /** The first group in a group that holds nothing but groups that are alike: opening it should show more than one box. */
  private onlyGroup(lookup: Lookup, group: string): string | undefined {
    const items = lookup.items.get(group)!;
    const alike = new Set(items.map((item) => (item.isGroup ? lookup.groups.get(item.id)!.alike : -1)));
    return items[0]?.isGroup && (items.length === 1 || (alike.size === 1 && !alike.has(0))) ? items[0].id : undefined;
  }

  /** Shows groups that are alike one by one, or together again. */
  unfold(part: number, view: View, id: string): View {
    const { lookup } = this.part(part);
    const group = groupOf(lookup, id);
    const around = group === null ? (lookup.nodes.get(id)?.group ?? "") : (lookup.groups.get(group)!.parent ?? "");
    const folds = view.unfolded.includes(around);
    return {
      ...view,
      open: [...this.opened(part, view)],
      unfolded: folds ? view.unfolded.filter((other) => other !== around) : [...view.unfolded, around],
    };
  }

  /** One level more, or everything below a box (all of it without one), as far as the limit goes. */
  openMore(part: number, view: View, below: string, levels: number, limit = OPENED): View {
    const { lookup } = this.part(part);
    const within = groupOf(lookup, below) ?? (below ? (lookup.nodes.get(below)?.group ?? "") : view.root);
    const open = this.opened(part, view);
    if (lookup.groups.has(within)) open.add(within);
    let now: View = { ...view, open: [...open] };
    let size = this.size(part, now);
    for (let level = 0; level < levels; level++) {
      const closed = [...allBoxes(this.scene(part, now).root)].map((box) =>
        box.kind === "module" || box.kind === "fold" ? groupOf(lookup, box.id) : null,
      );
      const inner = closed.filter((group): group is string => group !== null && lookup.parents(group).includes(within));
      if (!inner.length) break;
      for (const group of inner) {
        const grown = size + (lookup.items.get(group)!.length - 1);
        if (grown > limit) continue;
        const opened = [...now.open!];
        for (let at: string | undefined = group; at !== undefined; at = this.onlyGroup(lookup, at)) opened.push(at);
        now = { ...now, open: opened };
        size = grown;
      }
    }
    return now;
  }

  /** Closes all below the root, or shows exactly so many levels. */
  toDepth(_part: number, view: View, depth: number): View {
    return { ...view, open: depth ? null : [], depth, unfolded: [] };
  }

  /** A view in which a module or node can be seen, and the box that it then is; null if there is none. */
  reveal(part: number, view: View, name: string): { view: View; id: string } | null {
    const { lookup } = this.part(part);
    const id =
      lookup.nodes.has(name) || groupOf(lookup, name) !== null || name.startsWith("unvisited:")
        ? name
        : this.idOf(lookup, name);
    if (id === null) return null;
    const group = groupOf(lookup, id);
    const around =
      group !== null
        ? lookup.groups.get(group)!.parent
        : id.startsWith("unvisited:")
          ? this.groupAround(lookup, id.slice(10))
          : (lookup.nodes.get(id)?.group ?? "");
    const open = this.opened(part, view);
    for (const outer of lookup.parents(around)) open.add(outer);
    const inRoot = lookup.parents(around).includes(view.root) || group === view.root;
    const wide: View = { ...view, open: [...open], root: inRoot ? view.root : "", around: "" };
    const shown = this.representatives(part, wide)(id);
    if (shown?.startsWith("fold:") && group !== null && shown !== id)
      return { view: { ...wide, unfolded: [...wide.unfolded, around ?? ""] }, id };
    return { view: wide, id: shown ?? id };
  }

  /** For names of modules, the boxes in which they can be seen now. */
  boxesOf(part: number, view: View, names: string[]): string[] {
    const { lookup } = this.part(part);
    const found = names.map((name) => this.idOf(lookup, name)).filter((id): id is string => id !== null);
    return this.visibleOf(part, view, found);
  }

  /** The boxes that show the given nodes or modules now. */
  visibleOf(part: number, view: View, ids: string[]): string[] {
    const shown = this.representatives(part, view);
    return [...new Set(ids.map((id) => shown(id)).filter((id): id is string => id !== null))];
  }

  private representatives(part: number, view: View): (id: string) => string | null {
    const { lookup } = this.part(part);
    const scene = this.scene(part, view);
    const ids = new Set([...allBoxes(scene.root)].map((box) => box.id));
    const closed = new Map<string, string>();
    for (const box of allBoxes(scene.root)) {
      const group = groupOf(lookup, box.id);
      if (group !== null) for (const each of box.folded.length ? box.folded : [group]) closed.set(each, box.id);
    }
    const open = new Set(openClusters(scene.root));
    return (id) => {
      if (ids.has(id)) return id;
      const group = groupOf(lookup, id);
      if (group !== null && open.has(group)) return `module:${group}`;
      const around = lookup.parents(group ?? lookup.nodes.get(id)?.group ?? null).reverse();
      for (const outer of around) if (closed.has(outer)) return closed.get(outer)!;
      return null;
    };
  }

  private idOf(lookup: Lookup, fqn: string): string | null {
    if (fqn === "" && lookup.modules.get("")?.status === "failed") return "module:";
    if (fqn !== "" && lookup.groups.has(fqn)) return `module:${fqn}`;
    for (const node of lookup.nodes.values())
      if (
        node.fqn === fqn &&
        node.op !== "placeholder" &&
        node.op !== "output" &&
        (fqn !== "" || node.op === "call_module") &&
        node.group !== fqn
      )
        return node.id;
    for (const group of lookup.groups.values()) if (group.fqn === fqn && group.id !== "") return `module:${group.id}`;
    if (lookup.modules.get(fqn)?.status === "unvisited") return `unvisited:${fqn}`;
    const inner = fqn === "" ? undefined : [...lookup.groups.values()].find((group) => group.fqn.startsWith(`${fqn}.`));
    if (inner) return `module:${inner.id}`;
    for (const node of lookup.nodes.values()) if (fqn !== "" && node.fqn.startsWith(`${fqn}.`)) return node.id;
    return null;
  }

  private groupAround(lookup: Lookup, fqn: string): string {
    for (let at = fqn.lastIndexOf("."); at > 0; at = fqn.lastIndexOf(".", at - 1))
      if (lookup.groups.has(fqn.slice(0, at))) return fqn.slice(0, at);
    return "";
  }

  private opened(part: number, view: View): Set<string> {
    return new Set(view.open ?? this.scene(part, view).expanded);
  }

  private size(part: number, view: View): number {
    return [...allBoxes(this.scene(part, view).root)].length;
  }

  private scene(part: number, view: View): Scene {
    const { lookup, marks } = this.part(part);
    const values = this.values(part);
    return makeScene(lookup, { ...FIRST_VIEW, ...view }, marks, values ? (group) => values.category(group) : undefined);
  }

  private values(part: number): OverlayValues | undefined {
    const { overlay, overlays } = this.part(part);
    return overlay ? overlays.find((values) => values.overlay.name === overlay) : undefined;
  }

  private part(index: number): Part {
    const found = this.parts[index];
    if (!found)
      throw new Error(this.parts.length ? `There is no document number ${index + 1}.` : "No document is loaded.");
    return found;
  }
}

function openClusters(cluster: Cluster): string[] {
  return [cluster.id, ...cluster.members.flatMap((member) => (isCluster(member) ? openClusters(member) : []))];
}
