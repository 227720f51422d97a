import { describe, expect, it } from "vitest";

import type { KernelVariables } from "../generated/variables";
import { benchCode, modelLine, NoVariables, read, samplesFor } from "./variables";

const FOUND: KernelVariables = {
  models: [{ name: "net", type: "Net", parameters: 1234567 }],
  samples: [
    { name: "x", expression: "x", text: "tensor 2×4", fits: [] },
    { name: "pair", expression: "[pair]", text: "tuple of 2", fits: ["net"] },
  ],
  bench: "bench_2",
  package: "pb",
};

function answer(found: unknown): unknown {
  return { status: "ok", data: { "application/json": found, "text/plain": "…" } };
}

describe("what a kernel answers", () => {
  it("is taken over where it is sound", () => {
    expect(read(answer(FOUND))).toEqual(FOUND);
    expect(read({ status: "ok", data: { "text/plain": "None" } }).models).toEqual([]);
  });

  it("is refused where code could be made of it that nobody chose", () => {
    const bad = [
      { ...FOUND, bench: "a; b" },
      { ...FOUND, models: [{ name: "net)", type: "Net", parameters: 1 }] },
      { ...FOUND, samples: [{ ...FOUND.samples[0], expression: "x.y()" }] },
      { ...FOUND, models: undefined },
      {},
    ];
    for (const each of bad) expect(() => read(answer(each))).toThrow(NoVariables);
  });

  it("says in words what went wrong", () => {
    const missing = { status: "error", ename: "ModuleNotFoundError", evalue: "No module named 'prepbench'" };
    expect(() => read(missing)).toThrow("Install it there");
    expect(() => read({ status: "error", ename: "ValueError", evalue: "x" })).toThrow("ValueError: x");
    expect(() => read(null)).toThrow(NoVariables);
  });
});

describe("the cell that makes a bench", () => {
  it("names what was chosen", () => {
    expect(benchCode("net", "[pair]", FOUND)).toBe(
      "import prepbench as pb\n\nbench_2 = pb.Bench(net, calibration_inputs=[pair])\nbench_2",
    );
    expect(benchCode("net", "x", { ...FOUND, package: "prepbench" })).toContain("import prepbench\n");
  });

  it("leaves a place for samples", () => {
    expect(benchCode("net", null, FOUND)).toContain("calibration_inputs=[...],  # put here");
  });

  it("offers what forward takes first", () => {
    expect(samplesFor("net", FOUND).map(({ name }) => name)).toEqual(["pair", "x"]);
    expect(modelLine(FOUND.models[0]!)).toBe("net · Net · 1,234,567 parameters");
  });
});
