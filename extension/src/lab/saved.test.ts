import { describe, expect, it } from "vitest";

import { checkBench, loadingCode, parseBench } from "./saved";

const SHOWN = {
  title: "Net",
  sentence: "all modules captured",
  settings: [{ name: "Target", value: "ONNX Runtime" }],
  failures: [],
  assumptions: [],
  tables: [{ title: "Layers", columns: ["layer", "SQNR"], rows: [["fc", "31.0"]], numbers: [1], more: 0 }],
  chart: {
    title: "",
    x_title: "",
    y_title: "",
    better: "",
    width: 0,
    height: 0,
    left: 0,
    top: 0,
    right: 0,
    bottom: 0,
    x_ticks: [],
    y_ticks: [],
    front: [],
    points: [],
  },
  code: "pb.compile_model(net)",
  environment: [],
  samples: { first: "a", second: "b", caption: "They differ on 1 sample.", samples: [] },
};
const BENCH = { format: "prepbench bench", version: "1.1", shown: SHOWN, graph: { documents: [] }, runs: [] };

describe("a saved bench", () => {
  it("is read from text", () => {
    const { shown, graph } = parseBench(JSON.stringify(BENCH));
    expect(shown).toEqual(SHOWN);
    expect(graph).toEqual({ documents: [] });
  });

  it("of the first version has no samples", () => {
    const { samples, ...first } = SHOWN;
    expect(samples.first).toBe("a");
    expect(checkBench({ ...BENCH, version: "1.0", shown: first }).shown.samples.samples).toEqual([]);
  });

  it("may have no graph, where it was too large for an output", () => {
    expect(checkBench({ ...BENCH, graph: null }).graph).toBeNull();
    expect(checkBench({ ...BENCH, graph: "text" }).graph).toBeNull();
  });

  it.each<[string, unknown, RegExp]>([
    ["nothing", null, /no saved bench/],
    ["a list", [], /no saved bench/],
    ["another format", { ...BENCH, format: "x" }, /no saved bench/],
    ["a newer version", { ...BENCH, version: "2.0" }, /version 2.0/],
    ["no version", { ...BENCH, version: 1 }, /version none/],
    ["nothing to show", { ...BENCH, shown: undefined }, /bench.shown must be an object/],
    ["a missing field", { ...BENCH, shown: { ...SHOWN, code: undefined } }, /bench.shown.code must be of type string/],
    ["a control character", { ...BENCH, shown: { ...SHOWN, title: "a\u001b[2J" } }, /bench.shown.title holds/],
    ["reversed text", { ...BENCH, shown: { ...SHOWN, code: "\u202e" } }, /bench.shown.code holds/],
    [
      "a row of another table",
      { ...BENCH, shown: { ...SHOWN, tables: [{ ...SHOWN.tables[0], rows: [["fc"]] }] } },
      /other columns/,
    ],
    [
      "a point without a place",
      { ...BENCH, shown: { ...SHOWN, chart: { ...SHOWN.chart, points: [{ name: "a" }] } } },
      /points\[0\] lacks the field/,
    ],
    [
      "a place that is no number",
      { ...BENCH, shown: { ...SHOWN, chart: { ...SHOWN.chart, front: ["1"] } } },
      /front\[0\] must be of type number/,
    ],
  ])("with %s is refused", (_, data, message) => {
    expect(() => checkBench(data)).toThrow(message);
  });

  it("that was cut off is refused", () => {
    expect(() => parseBench(JSON.stringify(BENCH).slice(0, -9))).toThrow(/cut off/);
  });
});

describe("the code that opens a bench", () => {
  it("names the file as a Python text", () => {
    expect(loadingCode('my "net"\\.bench.json', "Net")).toContain(
      'pb.Bench.load("my \\"net\\"\\\\.bench.json", model=',
    );
  });

  it("has no text of a model that is no name", () => {
    const code = loadingCode("net.bench.json", 'Net\nimport os; os.system("x")');
    expect(code).not.toContain("os.system");
    expect(code).toContain("the model that the bench");
  });

  it("keeps a file name on its line", () => {
    expect(loadingCode("a\nimport os\n.bench.json", "Net").split("\n")).toHaveLength(7);
  });
});
