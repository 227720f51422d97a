import { expect, it } from "vitest";

import { globToRegExp, readQuery, widen } from "../src/bench/filters";
import { Marked } from "../src/bench/marked";
import { type Asked, departs, type Grouping, Rows, type TableData, withoutRuns } from "../src/bench/rows";

const DECISION = {
  rule: "global",
  activations: "8",
  weights_only: "false",
  block: "0",
  observer: "minmax",
  algorithm: "auto",
  formats: "",
  equalised: "false",
  pruning: "",
  pruned_by: "",
  mask: "none",
  amount: "",
  score: "",
};
const ALL: Asked = { text: "", type: "", status: "all", sort: "", down: false, grouping: "", open: new Set() };

function network(blocks: number): TableData {
  const parts = ["q_proj", "k_proj", "v_proj", "o_proj", "up", "down", "norm"];
  const layers = Array.from({ length: blocks }, (_, block) =>
    parts.map((part, at) => ({
      fqn: `layers.${block}.${part}`,
      type: part === "norm" ? "LayerNorm" : "Linear",
      parameters: (block * 7919 + at * 104729) % 65536,
    })),
  ).flat();
  return {
    layers,
    decisions: [
      { ...DECISION, label: "int8", weights: "8", quantized: true },
      { ...DECISION, label: "int4", weights: "4", quantized: true, rule: "layers.*.up" },
      { ...DECISION, label: "float", weights: "32", quantized: false },
    ],
    planned: layers.map(({ fqn }) => (fqn.endsWith("norm") ? 2 : fqn.endsWith("up") ? 1 : 0)),
    outcomes: [
      { label: "int8", why: "", pruned: "", note: "" },
      { label: "float", why: "too sensitive", pruned: "", note: "" },
    ],
    applied: layers.map((_, layer) => Number(layer % 10 === 0)),
    columns: [
      {
        key: "sqnr",
        title: "SQNR",
        unit: "dB",
        help: "",
        worst: "",
        stale: "",
        notes: [],
        noted: [],
        values: layers.map((_, layer) => (layer % 5 ? (layer * 31) % 97 : null)),
      },
    ],
  };
}

const small = new Rows(network(3));
const names = (rows: Rows, layers: readonly number[]): string[] => layers.map((layer) => rows.data.layers[layer]!.fqn);

it("finds layers by part, pattern, expression, type and status", () => {
  const count = (asked: Partial<Asked>): number => small.fitting({ ...ALL, ...asked }).length;
  expect(count({ text: "Q_PROJ" })).toBe(3);
  expect(count({ text: "layers.[01].*" })).toBe(14);
  expect(count({ text: "layers.?" })).toBe(21); // what lies inside, as a rule does
  expect(count({ text: "re:(q|k)_proj$" })).toBe(6);
  expect(count({ text: "re:(" })).toBe(0);
  expect(count({ text: "layernorm" })).toBe(3);
  expect(count({ type: "LayerNorm" })).toBe(3);
  expect(count({ status: "float" })).toBe(3);
  expect(count({ status: "rule" })).toBe(3);
  expect(count({ status: "quantized", text: "up" })).toBe(3);
});

it("takes how integers were found for no difference from the plan", () => {
  const planned = { ...DECISION, label: "int8, channels equalised", formats: "int8", weights: "8", quantized: true };
  const done = { label: "int8", why: "", pruned: "", note: "channels equalised" };
  expect(departs(planned, done)).toBe(false);
  expect(departs(planned, { ...done, label: "float", why: "too sensitive" })).toBe(true);
  expect(departs(planned, null)).toBe(false);
});

it("says how to widen a search that finds nothing", () => {
  const say = (text: string): string => widen(text, readQuery(text));
  expect(say("encoder.*")).toContain("“*encoder*”");
  expect(say("re:(")).toContain("cannot be read");
  expect(say("encoder")).toContain("shorter part");
});

it("reads patterns as Python's fnmatch does", () => {
  expect(globToRegExp("a.*[!0]").test("a.b.1")).toBe(true);
  expect(globToRegExp("a.*[!0]").test("a.b.0")).toBe(false);
  expect(globToRegExp("a+b(").test("a+b(")).toBe(true);
});

it("sorts names as people count, and what is unknown last", () => {
  const rows = new Rows(network(12));
  const byName = names(rows, rows.sorted(rows.fitting(ALL), "name", false));
  expect(byName.indexOf("layers.2.up")).toBeLessThan(byName.indexOf("layers.10.up"));
  for (const down of [false, true]) {
    const sorted = rows.sorted(rows.fitting(ALL), "sqnr", down);
    expect(sorted.slice(-17).every((layer) => rows.data.columns[0]!.values[layer] === null)).toBe(true);
  }
});

it("groups layers whose names differ in indices only", () => {
  const rows = small.rows({ ...ALL, grouping: "role", open: new Set(["layers.*.up Linear"]) });
  expect(rows.map(({ members }) => members.length).filter((count) => count === 3)).toHaveLength(7);
  expect(rows.filter(({ inside }) => inside)).toHaveLength(3);
  const blocks = small.rows({ ...ALL, grouping: "block" });
  expect(blocks.map((row) => small.keyOf(row))).toEqual(["layers.0.*", "layers.1.*", "layers.2.*"]);
});

it("names what is chosen by patterns only where they fit nothing else", () => {
  const layers = ["a.0.fc", "a.1.fc", "a.0.b.fc", "c.0.fc", "c.1.fc", "last"];
  const rows = new Rows({ ...network(0), layers: layers.map((fqn) => ({ fqn, type: "Linear", parameters: 1 })) });
  expect(rows.patternsFor(new Set([0, 1]))).toEqual(["a.[0-1].fc"]); // a.*.fc fits a.0.b.fc, too
  expect(rows.patternsFor(new Set([3, 4, 5]))).toEqual(["c.*.fc", "last"]);
  expect(rows.patternsFor(new Set([3]))).toEqual(["c.0.fc"]);
  expect(rows.patternsFor(new Set([0, 1, 2, 3, 4, 5]))).toEqual(["*"]);
});

it("names a class where its layers have no pattern of their own", () => {
  const names = ["stem", "a.0.one", "a.1.two", "head"];
  const types = ["Conv2d", "Conv2d", "Conv2d", "Linear"];
  const layers = names.map((fqn, at) => ({ fqn, type: types[at]!, parameters: 1 }));
  const rows = new Rows({ ...network(0), layers });
  expect(rows.patternsFor(new Set([0, 1, 2]))).toEqual(["Conv2d"]);
  expect(rows.patternsFor(new Set([0, 2]))).toEqual(["stem", "a.1.two"]);
});

it("chooses rows as lists of files do", () => {
  const rows = small.rows({ ...ALL, grouping: "role" });
  const marked = new Marked();
  marked.only(rows, 0);
  expect([...marked.layers]).toEqual([0, 7, 14]);
  marked.reach(rows, 2);
  expect(marked.layers.size).toBe(9);
  marked.toggle(rows, 1);
  expect(marked.has(rows[1]!)).toBe("none");
  marked.all(rows);
  expect(marked.layers.size).toBe(21);
});

it("sorts and filters 10,000 layers in a moment", () => {
  const rows = new Rows(network(1429));
  expect(rows.data.layers.length).toBeGreaterThan(10_000);
  const slowest = new Map<string, number>();
  const sorts = ["", "name", "planned", "applied", "why", "sqnr", "rule", "parameters", "type"];
  const groupings: Grouping[] = ["", "role", "block"];
  for (const sort of sorts) for (const grouping of groupings) time(`sort ${sort}`, { sort, grouping, down: true });
  for (const text of ["proj", "layers.*.q_proj", "re:[02468].up$"]) time(`filter ${text}`, { text });
  function time(what: string, asked: Partial<Asked>): void {
    const times = Array.from({ length: 5 }, () => {
      const fresh = new Rows(rows.data); // what is kept from an earlier sort must not help
      const start = performance.now();
      fresh.rows({ ...ALL, ...asked });
      return performance.now() - start;
    });
    slowest.set(what, Math.max(slowest.get(what) ?? 0, Math.min(...times))); // the least: a busy machine only adds to it
  }
  const worst = [...slowest].sort((a, b) => b[1] - a[1]);
  process.stdout.write(`10,003 layers, ms: ${worst.map(([what, ms]) => `${what} ${ms.toFixed(1)}`).join(", ")}\n`);
  expect(worst[0]![1]).toBeLessThan(100);
});

it("reads numbers in runs, and plain ones", () => {
  expect(withoutRuns([-3, 0, 2, -2, 1])).toEqual([0, 0, 0, 2, 1, 1]);
  expect(withoutRuns([0, 2, 1, 1])).toEqual([0, 2, 1, 1]);
  expect(withoutRuns([])).toEqual([]);
});
