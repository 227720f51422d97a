/** What is known about a box: rows, the user's line, its failure, its neighbours. */

import type { Failure, Finding, Module, Node, SourceLine } from "../generated/document";
import palette from "../generated/palette.json";
import type { TreeRow } from "./api";
import type { Lookup } from "./lookup";
import { type OverlayValues, withUnit } from "./overlay";
import { moduleOf } from "./search";

export interface Neighbour {
  id: string;
  text: string;
}

export interface Details {
  id: string;
  fqn: string;
  title: string;
  rows: [string, string][];
  source: SourceLine | null;
  frame: string;
  failure: { reason: string; raised: string; remedy: string } | null;
  findings: string[];
  producers: Neighbour[];
  consumers: Neighbour[];
  /** Group that opens, if there is one; "" else. */
  group: string;
}

const STATUS = palette.status as Record<string, { word: string }>;
const NEIGHBOURS = 12;

/** The group of `"module:<group>"` or `"fold:<group>"`; null for other ids. */
export function groupOf(lookup: Lookup, id: string): string | null {
  const group = /^(?:module|fold):/.test(id) ? id.slice(id.indexOf(":") + 1) : null;
  return group !== null && lookup.groups.has(group) ? group : null;
}

/** Details of a box; null if the document has nothing of that name. */
export function details(lookup: Lookup, id: string, overlays: readonly OverlayValues[], note = ""): Details | null {
  const node = lookup.nodes.get(id);
  const group = node ? null : groupOf(lookup, id);
  const fqn = node
    ? node.fqn
    : group !== null
      ? lookup.groups.get(group)!.fqn
      : id.startsWith("unvisited:")
        ? id.slice(10)
        : null;
  if (fqn === null) return null;
  const module = node ? (moduleOf(lookup, node) ? lookup.modules.get(fqn) : undefined) : lookup.modules.get(fqn);
  const part = group === null ? "" : lookup.groups.get(group)!.label;
  const failure = module?.failure ?? null;
  const source = failure?.source ?? node?.source ?? (group !== null ? firstSource(lookup, group) : null);
  return {
    id,
    fqn,
    title: part || (module ? fqn : node?.label) || lookup.document.model_type,
    rows: [
      ...moduleRows(module, group === null ? undefined : lookup.operations.get(group)),
      ...nodeRows(node, module),
      ...sizeRows(lookup, node),
      ...overlayRows(overlays, fqn, module !== undefined),
      ...(note ? [["change", note] as [string, string]] : []),
    ].filter(([, value]) => value !== ""),
    source,
    frame: (failure?.source ? failure.frame : "") || lookup.frameOf(source),
    failure: failure ? reasons(failure) : null,
    findings: lookup.document.findings.filter((finding) => finding.fqn === fqn && module).map(found),
    ...neighbours(lookup, node, group),
    group: group ?? "",
  };
}

function reasons(failure: Failure): { reason: string; raised: string; remedy: string } {
  return {
    reason: failure.kind,
    raised: [failure.exception_type, failure.message].filter(Boolean).join(": "),
    remedy: failure.remedy,
  };
}

function found(finding: Finding): string {
  return [finding.message, finding.remedy].filter(Boolean).join(" ");
}

function moduleRows(module: Module | undefined, operations: number | undefined): [string, string][] {
  if (!module) return [];
  return [
    ["type", module.type],
    ["status", STATUS[module.status]!.word],
    ["parameters", module.parameters ? module.parameters.toLocaleString("en-US") : ""],
    ["operations", operations ? String(operations) : ""],
    ["calls", module.calls > 1 ? String(module.calls) : ""],
  ];
}

function nodeRows(node: Node | undefined, module: Module | undefined): [string, string][] {
  if (!node) return [];
  const operation: [string, string][] = module
    ? [["operation", node.op === "call_module" ? "" : node.target]]
    : [
        ["operation", node.target],
        ["in", node.fqn],
        ["status", STATUS[node.status]!.word],
      ];
  return [...operation, ["shape", node.shapes.join(", ")], ["dtype", [...new Set(node.dtypes)].join(", ")]];
}

function sizeRows(lookup: Lookup, node: Node | undefined): [string, string][] {
  return lookup.sizesIn(node?.shapes ?? []).map(({ name, meaning }) => [name, meaning]);
}

function overlayRows(overlays: readonly OverlayValues[], fqn: string, isModule: boolean): [string, string][] {
  return overlays.map((values) => {
    const value = isModule ? values.of(fqn) : values.exact(fqn);
    return [
      values.overlay.name,
      value === null ? "" : typeof value === "number" ? withUnit(value, values.overlay.unit) : value,
    ];
  });
}

function firstSource(lookup: Lookup, group: string): SourceLine | null {
  for (const item of lookup.items.get(group) ?? []) {
    const source = item.isGroup ? null : lookup.nodes.get(item.id)!.source;
    if (source) return source;
  }
  return null;
}

function neighbours(
  lookup: Lookup,
  node: Node | undefined,
  group: string | null,
): { producers: Neighbour[]; consumers: Neighbour[] } {
  const members = node
    ? [node]
    : group === null
      ? []
      : [...lookup.nodes.values()].filter((each) => lookup.parents(each.group).includes(group));
  const inside = new Set(members.map((each) => each.id));
  const before = new Set(
    members.flatMap((each) => each.inputs.filter((id) => lookup.nodes.has(id) && !inside.has(id))),
  );
  const after = new Set(members.flatMap((each) => lookup.consumers(each.id).filter((id) => !inside.has(id))));
  const named = (ids: Set<string>): Neighbour[] =>
    [...ids].slice(0, NEIGHBOURS).map((id) => {
      const other = lookup.nodes.get(id)!;
      const shape = other.shapes[0] ? `  ${other.shapes[0]}` : "";
      return {
        id,
        text: `${moduleOf(lookup, other) ? other.fqn : other.fqn ? `${other.fqn} · ${other.label}` : other.label}${shape}`,
      };
    });
  return { producers: named(before), consumers: named(after) };
}

/** The modules in order, with depth and what is wrong with them, for a tree. */
export function tree(lookup: Lookup): TreeRow[] {
  return lookup.document.modules.map((module) => ({
    fqn: module.fqn,
    type: module.type,
    status: module.status,
    depth: module.fqn ? module.fqn.split(".").length : 0,
    failed: module.fqn
      ? (lookup.inside.get(module.fqn)?.get("failed") ?? 0)
      : lookup.document.modules.filter((m) => m.fqn && m.status === "failed").length,
    reason: module.failure?.kind ?? "",
    remedy: module.failure?.remedy ?? "",
    source: module.failure?.source ?? null,
  }));
}
