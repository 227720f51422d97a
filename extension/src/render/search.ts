/** Finding layers and operations by name, type, operator or status. */

import type { Node } from "../generated/document";
import type { Lookup } from "./lookup";

export interface Hit {
  /** A node's id, or `module:<group>`, or `unvisited:<fqn>`. */
  id: string;
  fqn: string;
  text: string;
}

/**
 * Everything that matches, in order of execution; modules that are one operation are found once.
 *
 * @param query words that must all occur, or a regular expression between slashes
 */
export function search(lookup: Lookup, query: string): Hit[] {
  const matches = matcher(query);
  if (!matches) return [];
  const hits: Hit[] = [];
  const text = (fqn: string, type: string, status: string, more: string): string => `${fqn} ${type} ${status} ${more}`;
  for (const group of lookup.groups.values()) {
    const module = lookup.modules.get(group.fqn);
    if (group.id && matches(text(group.fqn, module?.type ?? "", module?.status ?? "traced", "")))
      hits.push({ id: `module:${group.id}`, fqn: group.fqn, text: `${group.fqn} ${module?.type ?? ""}` });
  }
  for (const node of lookup.nodes.values()) {
    const module = moduleOf(lookup, node);
    if (
      matches(
        text(
          module ? node.fqn : `${node.fqn}.${node.label}`,
          module?.type ?? node.type,
          node.status,
          `${node.target} ${node.op}`,
        ),
      )
    )
      hits.push({
        id: node.id,
        fqn: node.fqn,
        text: `${module ? node.fqn : node.label} ${module?.type ?? node.target}`,
      });
  }
  for (const names of lookup.unvisited.values()) {
    for (const fqn of names) {
      const type = lookup.modules.get(fqn)!.type;
      if (matches(text(fqn, type, "unvisited", ""))) hits.push({ id: `unvisited:${fqn}`, fqn, text: `${fqn} ${type}` });
    }
  }
  return inOrder(lookup, hits);
}

/** The module that a node stands for, if it does. */
export function moduleOf(lookup: Lookup, node: Node): { fqn: string; type: string } | undefined {
  const stands = node.op === "call_module" || (node.group !== null && node.fqn !== lookup.groups.get(node.group)!.fqn);
  return stands ? lookup.modules.get(node.fqn) : undefined;
}

function matcher(query: string): ((text: string) => boolean) | null {
  const wanted = query.trim();
  const pattern = /^\/(.+)\/$/.exec(wanted);
  if (pattern) {
    try {
      const expression = new RegExp(pattern[1]!, "i");
      return (text) => expression.test(text);
    } catch {
      return null;
    }
  }
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  return (text) => {
    const lower = text.toLowerCase();
    return words.every((word) => lower.includes(word));
  };
}

function inOrder(lookup: Lookup, hits: Hit[]): Hit[] {
  const position = new Map<string, number>();
  let next = 0;
  for (const node of lookup.nodes.values()) {
    for (const group of lookup.parents(node.group).reverse())
      if (!position.has(`module:${group}`)) position.set(`module:${group}`, next++);
    position.set(node.id, next++);
  }
  return hits.sort((a, b) => (position.get(a.id) ?? next) - (position.get(b.id) ?? next));
}
