/** What a document from somebody else must hold beyond its fields; Python refuses the same when it reads one. */

import type { GraphCollectionDocument, Node } from "../generated/document";

/** A document that cannot be shown; the message says what is wrong with it, where, and what to do. */
export class DocumentError extends Error {}

/** Modules inside each other. */
export const MAX_DEPTH = 500;

/** Control characters, characters that reverse text, and halves of surrogate pairs. */
const UNPRINTABLE = /(?![\t\n])[\p{Cc}\p{Cs}\u2028\u2029\u202a-\u202e\u2066-\u2069]/u;

/** Refuses text that could steer or deceive whoever reads it. */
export function checkText(text: string, path: string): void {
  const found = UNPRINTABLE.exec(text);
  if (!found) return;
  const code = found[0].charCodeAt(0).toString(16).padStart(4, "0");
  throw new DocumentError(
    `${path} holds "\\u${code}" at position ${found.index}, which is no printable text. ` +
      "Trace the model again to write a new document.",
  );
}

/** Refuses numbers that are none, and counts below zero. */
export function checkNumber(value: number, path: string, counts: boolean): void {
  if (!Number.isFinite(value)) throw new DocumentError(`${path} must be a finite number, got ${value}.`);
  if (counts && Math.abs(value) > 2 ** 53) throw new DocumentError(`${path} is larger than any number in a document.`);
  if (counts && value < 0) throw new DocumentError(`${path} counts something and cannot be ${value}.`);
}

/** Refuses groups that hold each other, that are not there, or that nest too deep. */
export function checkHierarchy(document: GraphCollectionDocument): void {
  const parents = new Map<string, string | null>();
  for (const group of document.groups) {
    if (parents.has(group.id))
      throw new DocumentError(`The document has two groups "${group.id}"; each needs an id of its own.`);
    parents.set(group.id, group.parent);
  }
  if (!parents.has("")) throw new DocumentError("The document lacks the group of the model itself (its id is empty).");
  const depths = new Map<string, number>();
  for (const group of document.groups) {
    const chain = new Set<string>();
    let last = "";
    let at: string | null = group.id;
    while (at !== null && !depths.has(at)) {
      if (chain.has(at))
        throw new DocumentError(`The modules of the document hold each other: ${circle(chain, at, "in")}.`);
      if (!parents.has(at))
        throw new DocumentError(`Group "${last}" lies in "${at}", which the document does not have.`);
      chain.add(at);
      last = at;
      at = parents.get(at)!;
    }
    let depth = at === null ? 0 : depths.get(at)!;
    for (const name of [...chain].reverse()) depths.set(name, ++depth);
    if (depth > MAX_DEPTH)
      throw new DocumentError(`The modules of the document nest ${depth} deep; ${MAX_DEPTH} can be shown.`);
  }
  checkNodes(document, parents);
  checkSizes(document);
}

function checkSizes(document: GraphCollectionDocument): void {
  const seen = new Set<string>();
  for (const { name, meaning } of document.sizes) {
    if (!name || !meaning)
      throw new DocumentError(`The size "${name}" of the document stands for "${meaning}"; both need a text.`);
    if (seen.has(name))
      throw new DocumentError(`The document explains the size "${name}" twice; a name stands for one size.`);
    seen.add(name);
  }
}

function checkNodes(document: GraphCollectionDocument, groups: ReadonlyMap<string, unknown>): void {
  const all = new Set<string>();
  for (const graph of document.graphs) {
    const nodes = new Map<string, Node>();
    for (const node of graph.nodes) {
      if (node.group !== null && !groups.has(node.group))
        throw new DocumentError(`Node "${node.id}" lies in group "${node.group}", which the document does not have.`);
      if (all.has(node.id))
        throw new DocumentError(`The document has two nodes "${node.id}"; each needs an id of its own.`);
      all.add(node.id);
      nodes.set(node.id, node);
    }
    for (const node of graph.nodes)
      for (const source of node.inputs)
        if (!nodes.has(source))
          throw new DocumentError(`Node "${node.id}" uses "${source}", which its graph "${graph.id}" does not have.`);
    checkCircles(nodes);
  }
}

/** Follows the inputs of each node, without recursion: chains are as long as graphs. */
function checkCircles(nodes: ReadonlyMap<string, Node>): void {
  const finished = new Set<string>();
  for (const start of nodes.keys()) {
    const way = new Map<string, number>(); // open nodes, with the number of inputs that were followed
    const stack = finished.has(start) ? [] : [start];
    while (stack.length) {
      const at = stack[stack.length - 1]!;
      const { inputs } = nodes.get(at)!;
      const position = way.get(at) ?? 0;
      if (position === inputs.length) {
        way.delete(at);
        finished.add(stack.pop()!);
        continue;
      }
      way.set(at, position + 1);
      const source = inputs[position]!;
      if (way.has(source))
        throw new DocumentError(`The nodes of the document use each other: ${circle(way.keys(), source, "uses")}.`);
      if (!finished.has(source)) stack.push(source);
    }
  }
}

function circle(way: Iterable<string>, again: string, word: string): string {
  const names = [...way];
  return [...names.slice(names.indexOf(again)), again].map((name) => `"${name}"`).join(` ${word} `);
}
