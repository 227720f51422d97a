import { describe, expect, it } from "vitest";
import { namesBetween } from "../src/bench/brush";
import { gridLines, isClipped, shareWords } from "../src/bench/inspected_charts";
import { bytesWords, choiceWords } from "../src/bench/inspector";

describe("the words of the inspector", () => {
  it("says what another precision would be", () => {
    const choice = { label: "int4 weights", sqnr: 18.24, change: -31000, refusal: "" };
    expect(choiceWords(choice)).toBe("int4 weights: 18.2 dB, −31 kB");
    expect(choiceWords({ ...choice, sqnr: null, change: 0 })).toBe("int4 weights");
    expect(choiceWords({ ...choice, refusal: "no kernel" })).toBe("int4 weights: not possible");
    expect([bytesWords(12), bytesWords(-2_500_000)]).toEqual(["+12 B", "−2.5 MB"]);
  });

  it("never calls a share nothing that is something", () => {
    expect([shareWords(0), shareWords(1e-6), shareWords(0.0312)]).toEqual(["none", "under 0.01 %", "3.1 %"]);
  });
});

describe("the grid", () => {
  const grid = { grid: [-0.32, 0.28], steps: [0.04, 0.04], levels: 16 };
  it("clips what is more than half a step beyond it", () => {
    expect([-0.35, -0.33, 0.29, 0.31].map((value) => isClipped(value, grid))).toEqual([true, false, false, true]);
    expect(isClipped(9, { grid: [], steps: [] })).toBe(false);
  });

  it("is drawn where its numbers are few and the same everywhere", () => {
    expect(gridLines(grid)).toHaveLength(16);
    expect(gridLines({ ...grid, levels: 256 })).toEqual([]);
    expect(gridLines({ ...grid, steps: [0.01, 0.04] })).toEqual([]);
  });
});

describe("a brushed range", () => {
  it("holds all rows between two, in both directions", () => {
    expect(namesBetween(["a", "b", "c", "d"], "c", "a")).toEqual(["a", "b", "c"]);
    expect(namesBetween(["a"], "a", "x")).toEqual([]);
  });
});
