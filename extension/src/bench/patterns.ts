/**
 * Patterns that stand for layers: what a rule is written with. A rule's glob or expression also takes what lies inside
 * of a module that it fits, so the same holds here.
 */

const INDEX = /(^|\.)\d+(?=\.|$)/g;
const MOST_CHECKS = 300; // of patterns in one choice, each against all layers
const SPECIAL = /[\\^$.|?*+()[\]{}]/g;

/** The name with `*` for every index. */
export function patternOf(fqn: string): string {
  return fqn.replace(INDEX, "$1*");
}

/**
 * The block of each name, e.g. `layers.3`; "" outside of blocks. It is the outermost numbered module that has others
 * beside it.
 */
export function blocksOf(names: readonly string[]): string[] {
  const counts = new Map<string, Set<string>>();
  const outer = names.map((name) => {
    const blocks = numbered(name);
    for (const [block, kind] of blocks) {
      const others = counts.get(kind);
      if (others) others.add(block);
      else counts.set(kind, new Set([block]));
    }
    return blocks;
  });
  return outer.map((blocks) => blocks.find(([, kind]) => counts.get(kind)!.size > 1)?.[0] ?? "");
}

/** The numbered modules around a layer, the outermost first, each with what it and its neighbours are called. */
function numbered(name: string): [block: string, kind: string][] {
  const found: [string, string][] = [];
  let kind = "";
  for (let from = 0, dot = name.indexOf("."); dot >= 0; from = dot + 1, dot = name.indexOf(".", from)) {
    const part = name.slice(from, dot);
    const isIndex = /^\d+$/.test(part);
    kind += from ? `.${isIndex ? "*" : part}` : isIndex ? "*" : part;
    if (isIndex) found.push([name.slice(0, dot), kind]);
  }
  return found;
}

/** The source of an expression for what Python's `fnmatch` fits. */
export function globSource(glob: string): string {
  return glob.replace(/\[(!?)([^\]]+)\]|[*?]|[\\^$.|+(){}[\]]/g, (found, not: string, set: string) => {
    if (set !== undefined) return `[${not ? "^" : ""}${set.replace(/[\\^]/g, "\\$&")}]`;
    return found === "*" ? ".*" : found === "?" ? "." : `\\${found}`;
  });
}

/** What the key of a rule fits: the names, and those inside of modules with such names. */
export function keyToRegExp(key: string): RegExp {
  const source = key.startsWith("re:") ? key.slice(3) : globSource(key);
  return new RegExp(`^(?:${source})(?:\\..*)?$`, "s");
}

export class Patterns {
  private checks = 0;
  private known: { roles: Map<string, number[]>; blocks: Map<string, number[]> } | null = null;
  private blockNames: readonly string[] | null = null;

  constructor(private readonly names: readonly string[]) {}

  /** The block of each layer; "" outside of blocks. */
  get blocks(): readonly string[] {
    this.blockNames ??= blocksOf(this.names);
    return this.blockNames;
  }

  /** The layers by role and by block. */
  private get parts(): { roles: Map<string, number[]>; blocks: Map<string, number[]> } {
    if (this.known) return this.known;
    this.known = { roles: new Map(), blocks: new Map() };
    for (const [layer, name] of this.names.entries()) {
      add(this.known.roles, patternOf(name), layer);
      add(this.known.blocks, this.blocks[layer]!, layer);
    }
    return this.known;
  }

  /**
   * As few patterns as can be found for exactly these layers: one of those asked for, if it fits, a glob or an
   * expression for all, or one for each block or role, and names for the rest.
   */
  patternsFor(layers: ReadonlySet<number>, asked: readonly (readonly string[])[] = []): string[] {
    this.checks = MOST_CHECKS;
    if (!layers.size) return [];
    if (layers.size === this.names.length && layers.size > 1) return ["*"];
    for (const keys of asked) if (keys.length && this.isExact(keys, layers)) return [...keys];
    const chosen = [...layers].sort((one, other) => one - other);
    if (chosen.length === 1) return [this.names[chosen[0]!]!];
    const one = this.together(chosen, layers);
    if (one) return [one];
    const byRole = this.parted(chosen, layers, this.parts.roles);
    const byBlock = this.parted(chosen, layers, this.parts.blocks);
    return byBlock.length < byRole.length ? byBlock : byRole;
  }

  /** Whether patterns fit these layers and no others. */
  private isExact(keys: readonly string[], layers: ReadonlySet<number>): boolean {
    let tests: RegExp[];
    try {
      tests = keys.map(keyToRegExp);
    } catch {
      return false; // an expression that only Python reads
    }
    this.checks -= keys.length;
    return this.names.every((name, layer) => tests.some((test) => test.test(name)) === layers.has(layer));
  }

  /** One pattern for all of these; "" if none is found. */
  private together(chosen: readonly number[], layers: ReadonlySet<number>): string {
    const names = chosen.map((layer) => this.names[layer]!);
    const candidates = new Set<string>();
    const roles = new Set(names.map(patternOf));
    if (roles.size === 1) for (const each of byIndices(names)) candidates.add(each);
    const blocks = new Set(chosen.map((layer) => this.blocks[layer]!));
    const [block = ""] = blocks;
    if (blocks.size === 1 && block) candidates.add(`${block}.*`);
    const parts = names.map((name) => name.split("."));
    const start = common(parts);
    const end = common(parts.map((each) => [...each].reverse())).reverse();
    if (start.length) candidates.add([...start, "*"].join("."));
    if (end.length) candidates.add(["*", ...end].join("."));
    if (start.length && end.length) candidates.add([...start, "*", ...end].join("."));
    for (const each of candidates) if (this.checks > 0 && this.isExact([each], layers)) return each;
    return "";
  }

  private parted(
    chosen: readonly number[],
    layers: ReadonlySet<number>,
    parts: ReadonlyMap<string, readonly number[]>,
  ): string[] {
    const found: string[] = [];
    const seen = new Set<number>();
    for (const members of parts.values()) {
      const inside = members.filter((layer) => layers.has(layer));
      if (inside.length < 2 || this.checks <= 0) continue;
      const pattern = this.together(inside, new Set(inside));
      if (!pattern) continue;
      found.push(pattern);
      for (const layer of inside) seen.add(layer);
    }
    return [...found, ...chosen.filter((layer) => !seen.has(layer)).map((layer) => this.names[layer]!)];
  }
}

/** Patterns for names that differ in indices only: any index, a range of digits, any number, these numbers. */
function byIndices(names: readonly string[]): string[] {
  const star = patternOf(names[0]!);
  if (/[?[\]]/.test(star)) return [];
  const values = names.map((name) => [...name.matchAll(INDEX)].map(({ 0: found }) => found.replace(".", "")));
  const columns = values[0]!.map((_, at) => [...new Set(values.map((each) => each[at]!))]);
  const pieces = star.split("*");
  const joined = (parts: readonly string[], escaped: boolean): string =>
    pieces.map((piece, at) => (escaped ? piece.replace(SPECIAL, "\\$&") : piece) + (parts[at] ?? "")).join("");
  const several = (column: readonly string[]): boolean => column.length > 1;
  const range = columns.map((column) => (several(column) ? digits(column) : column[0]!));
  return [
    joined(
      columns.map(() => "*"),
      false,
    ),
    joined(
      columns.map((column) => (several(column) ? "*" : column[0]!)),
      false,
    ),
    ...(range.includes("") ? [] : [joined(range, false)]),
    `re:${joined(
      columns.map((column) => (several(column) ? "\\d+" : column[0]!)),
      true,
    )}`,
    `re:${joined(
      columns.map((column) => (several(column) ? `(${column.join("|")})` : column[0]!)),
      true,
    )}`,
  ];
}

/** A set of a glob for single digits that follow each other; "" for others. */
function digits(column: readonly string[]): string {
  const numbers = column.map(Number).sort((one, other) => one - other);
  const follow = numbers.every((value, at) => value < 10 && value === numbers[0]! + at);
  return follow ? `[${numbers[0]}-${numbers.at(-1)}]` : "";
}

/** The parts that all begin with; never all of one. */
function common(parts: readonly (readonly string[])[]): string[] {
  const first = parts[0]!;
  const least = Math.min(...parts.map(({ length }) => length)) - 1;
  let length = 0;
  while (length < least && parts.every((each) => each[length] === first[length])) length++;
  return first.slice(0, length);
}

function add(map: Map<string, number[]>, key: string, layer: number): void {
  const members = map.get(key);
  if (members) members.push(layer);
  else map.set(key, [layer]);
}
