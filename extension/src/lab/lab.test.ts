import { describe, expect, it } from "vitest";

import type { TreeRow } from "../render/api";
import type { Cell } from "./cells";
import { findCell, isCell, lineInEditor, nameOfCell } from "./cells";
import { candidates } from "./paths";
import { hierarchy, indexOf, matching, openAtFirst, visible } from "./rows";
import { lookOf } from "./settings";

function row(fqn: string, more: Partial<TreeRow> = {}): TreeRow {
  const depth = fqn === "" ? 0 : fqn.split(".").length;
  return { fqn, type: "Linear", status: "traced", depth, failed: 0, reason: "", remedy: "", source: null, ...more };
}

const ROWS = [
  row("", { type: "Net" }),
  row("a"),
  row("a.x"),
  row("a.x.deep"),
  row("a.x.deep.deeper", { status: "failed", reason: "data-dependent branch" }),
  row("b"),
  row("b.y"),
  row("b.y.deep"),
];

describe("the tree", () => {
  const items = hierarchy(ROWS);
  const names = (indices: readonly number[]): string[] => indices.map((index) => items[index]?.row.fqn ?? "?");

  it("knows parents, ends and names", () => {
    expect(items.map(({ parent }) => parent)).toEqual([-1, 0, 1, 2, 3, 0, 5, 6]);
    expect(items.map(({ end }) => end)).toEqual([8, 5, 5, 5, 5, 8, 8, 8]);
    expect(items.map(({ name }) => name)).toEqual(["", "a", "x", "deep", "deeper", "b", "y", "deep"]);
    expect(items.map(({ position }) => position)).toEqual([1, 1, 1, 1, 1, 2, 1, 1]);
    expect(items[0]?.children).toBe(2);
  });

  it("opens two levels and the ways to failures", () => {
    expect(names(visible(items, openAtFirst(items), null))).toEqual([
      "",
      "a",
      "a.x",
      "a.x.deep",
      "a.x.deep.deeper",
      "b",
      "b.y",
    ]);
  });

  it("keeps what lies above a match", () => {
    expect(names(visible(items, new Set(), matching(items, " B.Y.D ")))).toEqual(["", "b", "b.y", "b.y.deep"]);
    expect(matching(items, "  ")).toBeNull();
  });

  it("finds the module of an operation", () => {
    const byName = new Map(items.map(({ row: { fqn } }, index) => [fqn, index]));
    expect(indexOf(byName, "a.x/add_1")).toBe(2);
    expect(indexOf(byName, "add_1")).toBe(0);
    expect(indexOf(new Map(), "a")).toBe(-1);
  });

  it("is made of 20,000 rows in no time", () => {
    const many = [row(""), ...Array.from({ length: 20_000 }, (_, n) => row(`m${n}`))];
    const started = performance.now();
    const made = hierarchy(many);
    expect(visible(made, openAtFirst(made), null)).toHaveLength(20_001);
    expect(performance.now() - started).toBeLessThan(500);
  });
});

describe("where a file lies in the server's folder", () => {
  const root = { serverRoot: "~/work", rootUri: "file:///home/ann/my%20work" };

  it.each([
    ["/home/ann/my work/nets/a.py", ["nets/a.py"]],
    ["/home/bob/work/a.py", ["a.py"]],
    ["/data/b/work/a.py", ["a.py"]],
    ["/usr/lib/python3/a.py", []],
    ["nets/../a.py", ["books/a.py", "a.py"]],
    ["../../a.py", []],
  ])("%s", (file, expected) => {
    expect(candidates(file, root, "books")).toEqual(expected);
  });

  it("knows roots without a home and drives", () => {
    expect(candidates("/srv/a.py", { serverRoot: "/", rootUri: "" }, "")).toEqual(["srv/a.py"]);
    expect(candidates("/srv/other/a.py", { serverRoot: "/srv/o", rootUri: "" }, "")).toEqual([]);
    expect(candidates("C:\\nets\\a.py", { serverRoot: "", rootUri: "file:///c:/nets" }, "")).toEqual(["a.py"]);
    expect(candidates("/root/a.py", { serverRoot: "~", rootUri: "" }, "")).toEqual(["a.py"]);
  });
});

describe("the cell that a line is in", () => {
  const cell = (source: string, type = "code", executionCount: number | null = null): Cell => ({
    model: { type, executionCount, sharedModel: { getSource: () => source } },
    editor: null,
    ready: Promise.resolve(),
  });
  const cells = [cell("if x:", "markdown"), cell("x = 1"), cell("def f(x):\n    if x:\n        pass", "code", 7)];

  it("is named as ipykernel names it", () => {
    const codes = ["", "a", "ab", "abc", "abcd", "x = 1\nprint('ü∅')\n"];
    expect(codes.map(nameOfCell)).toEqual([
      "3990065800",
      "2167009006",
      "2805137849",
      "3350977461",
      "804720481",
      "1088295903",
    ]);
  });

  it("is found by name, count or code", () => {
    expect(findCell(cells, `/tmp/ipykernel_12/${nameOfCell("x = 1")}.py`, 1)).toBe(1);
    expect(findCell(cells, "/tmp/ipykernel_12/1.py", 1)).toBe(-1);
    expect(findCell(cells, "<ipython-input-7-0a1b2c>", 2)).toBe(2);
    expect(findCell(cells, "notebook cell", 2, "if x:")).toBe(2);
    expect(findCell(cells, "notebook cell", 2)).toBe(-1);
  });

  it("is found where blank lines come first, which IPython does not count", () => {
    const source = "\n  \ndef f(x):\n    if x:\n        pass";
    expect(findCell([cell("1 + 1"), cell(source)], "notebook cell", 2, "if x:")).toBe(1);
    expect(lineInEditor(source, 2)).toBe(4);
    expect(lineInEditor(source, 2, "if x:")).toBe(4);
    expect(lineInEditor(source, 4, "if x:")).toBe(4);
    expect(lineInEditor(source, 3, "if x:")).toBe(0);
    expect(lineInEditor("if x:", 1)).toBe(1);
    expect(lineInEditor("", 1)).toBe(1);
  });

  it("is told from a file", () => {
    expect(["notebook cell", "<stdin>", "/tmp/ipykernel_1/2.py"].every(isCell)).toBe(true);
    expect(isCell("/home/ann/ipykernel_notes.py")).toBe(false);
  });
});

describe("settings", () => {
  it("that are not sound are left out", () => {
    const colours = { failed: { light: "#c00", dark: "red" }, leaf: { other: "#fff" }, traced: 1 };
    expect(lookOf({ depth: "2", limit: 50, colours })).toEqual({
      depth: 0,
      limit: 50,
      colours: { failed: { light: "#c00" } },
    });
  });
});
