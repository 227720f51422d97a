/** What is typed into the filter of the table, as a test of layers. */

export type Status = "all" | "quantized" | "float" | "differs" | "rule";

export const STATUSES: readonly { name: Status; title: string }[] = [
  { name: "all", title: "Any status" },
  { name: "quantized", title: "Quantized" },
  { name: "float", title: "Float" },
  { name: "differs", title: "Applied differs" },
  { name: "rule", title: "Set by a rule" },
];

export interface Query {
  kind: "all" | "part" | "glob" | "regex";
  /** Takes lower-case text, but for expressions. */
  fits(name: string, type: string): boolean;
  /** Why a regular expression cannot be read. */
  problem: string;
}

export function isGlob(text: string): boolean {
  return /[*?[]/.test(text);
}

/** A pattern as Python's `fnmatch` reads it, over the whole text. */
export function globToRegExp(glob: string): RegExp {
  const source = glob.replace(/\[(!?)([^\]]+)\]|[*?]|[\\^$.|+(){}[\]]/g, (found, not: string, set: string) => {
    if (set !== undefined) return `[${not ? "^" : ""}${set.replace(/[\\^]/g, "\\$&")}]`;
    return found === "*" ? ".*" : found === "?" ? "." : `\\${found}`;
  });
  return new RegExp(`^(?:${source})$`, "s");
}

/** Reads `re:` as an expression that may match anywhere, `*`, `?`, `[` as a pattern over the whole, others as a part. */
export function readQuery(text: string): Query {
  const trimmed = text.trim();
  if (!trimmed) return { kind: "all", fits: () => true, problem: "" };
  if (trimmed.startsWith("re:")) return expression(trimmed.slice(3));
  const needle = trimmed.toLowerCase();
  if (!isGlob(needle)) {
    return { kind: "part", fits: (name, type) => name.includes(needle) || type.includes(needle), problem: "" };
  }
  const pattern = globToRegExp(needle);
  return { kind: "glob", fits: (name, type) => pattern.test(name) || pattern.test(type), problem: "" };
}

function expression(source: string): Query {
  try {
    const pattern = new RegExp(source, "i");
    return { kind: "regex", fits: (name, type) => pattern.test(name) || pattern.test(type), problem: "" };
  } catch (error) {
    const problem = error instanceof Error ? error.message : String(error);
    return { kind: "regex", fits: () => false, problem };
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
  if (query.kind === "part") return "Try a shorter part of a name, or a pattern such as “*conv*”.";
  return "";
}
