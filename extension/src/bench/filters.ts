/** What is typed into the filter of the table, as a test of layers and as the key of a rule. */

import { globSource, keyToRegExp } from "./patterns";

export type Status = "all" | "quantized" | "float" | "differs" | "rule";

export const STATUSES: readonly { name: Status; title: string }[] = [
  { name: "all", title: "Any status" },
  { name: "quantized", title: "Quantized" },
  { name: "float", title: "Float" },
  { name: "differs", title: "Applied differs" },
  { name: "rule", title: "Set by a rule" },
];

export interface Query {
  kind: "all" | "part" | "glob" | "regex" | "several";
  /** Takes lower-case text, but for expressions. */
  fits(name: string, type: string): boolean;
  /** Why a regular expression cannot be read. */
  problem: string;
  /** Keys of rules that mean the same, as far as names can say it; the ones that read best come first. */
  keys: readonly (readonly string[])[];
}

export function isGlob(text: string): boolean {
  return /[*?[]/.test(text);
}

/** A pattern as Python's `fnmatch` reads it, over the whole text. */
export function globToRegExp(glob: string): RegExp {
  return new RegExp(`^(?:${globSource(glob)})$`, "s");
}

/**
 * Reads `re:` as an expression that may match anywhere, `*`, `?`, `[` as a pattern, which also takes what lies inside
 * of the modules that it fits, others as a part; several stand with ", " between them.
 */
export function readQuery(text: string): Query {
  const parts = text.split(/,\s+/).filter((part) => part.trim());
  return parts.length > 1 ? several(parts.map(readOne)) : readOne(parts[0] ?? "");
}

function several(queries: readonly Query[]): Query {
  return {
    kind: "several",
    fits: (name, type) => queries.some((query) => query.fits(name, type)),
    problem: queries.find(({ problem }) => problem)?.problem ?? "",
    keys: [queries.flatMap(({ keys }) => keys[0] ?? []), queries.flatMap(({ keys }) => keys.at(-1) ?? [])],
  };
}

function readOne(text: string): Query {
  const trimmed = text.trim();
  if (!trimmed) return { kind: "all", fits: () => true, problem: "", keys: [] };
  if (trimmed.startsWith("re:")) return expression(trimmed.slice(3));
  const needle = trimmed.toLowerCase();
  if (!isGlob(needle)) {
    const fits = (name: string, type: string): boolean => name.includes(needle) || type.includes(needle);
    return { kind: "part", fits, problem: "", keys: [[`*${trimmed}*`]] };
  }
  const [names, types] = [keyToRegExp(needle), globToRegExp(needle)];
  return { kind: "glob", fits: (name, type) => names.test(name) || types.test(type), problem: "", keys: [[trimmed]] };
}

function expression(source: string): Query {
  try {
    const pattern = new RegExp(source, "i");
    const fits = (name: string, type: string): boolean => pattern.test(name) || pattern.test(type);
    return { kind: "regex", fits, problem: "", keys: [[`re:${source}`], [`re:.*(${source}).*`]] };
  } catch (error) {
    const problem = error instanceof Error ? error.message : String(error);
    return { kind: "regex", fits: () => false, problem, keys: [] };
  }
}

/** How a query that finds nothing could be widened. */
export function widen(text: string, query: Query): string {
  const trimmed = text.trim();
  if (query.problem) return `The expression cannot be read: ${query.problem}.`;
  if (query.kind === "regex") return "Try a shorter expression; it may match anywhere in a name or type.";
  if (query.kind === "glob") {
    return `A pattern must fit the whole name: try “*${trimmed.replace(/^[*.]+|[*.]+$/g, "")}*”.`;
  }
  if (query.kind === "several") return "Each of the patterns finds nothing: try one alone.";
  if (query.kind === "part") return "Try a shorter part of a name, or a pattern such as “*conv*”.";
  return "";
}
