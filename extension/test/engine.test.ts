/** What the page asks of the engine: views after a click, search, details, overlays. */

import { readFileSync } from "node:fs";
import { beforeEach, describe, expect, it } from "vitest";
import type { GraphCollectionDocument, Overlay } from "../src/generated/document";
import { FIRST_VIEW, type View } from "../src/render/boxes";
import { Engine } from "../src/render/engine";

const golden = (name: string): GraphCollectionDocument =>
  JSON.parse(readFileSync(new URL(`../../tests/golden/${name}.graph.json`, import.meta.url), "utf8"));
const CLOSED: View = { ...FIRST_VIEW, open: [] };
let engine: Engine;

async function loaded(name: string): Promise<Engine> {
  engine = new Engine();
  await engine.load(golden(name));
  return engine;
}

const ids = (view: View): string[] => engine.draw(0, view, "").boxes.map((box) => box.id);

describe("a language model", () => {
  beforeEach(() => loaded("language_model"));

  it("opens a module together with the first of those that are alike in it, and closes it with all in it", () => {
    const open = engine.toggle(0, CLOSED, "module:layers");
    expect(open.open!.sort()).toEqual(["layers", "layers.0"]);
    expect(ids(open)).toContain("fold:layers.1");
    expect(engine.toggle(0, open, "module:layers").open).toEqual([]);
  });

  it("closes the module of an operation", () => {
    const open = engine.toggle(0, engine.toggle(0, CLOSED, "module:layers"), "module:layers.0.mlp");
    expect(ids(open)).toContain(":n0_5");
    expect(ids(engine.toggle(0, open, ":n0_5"))).toContain("module:layers.0.mlp");
  });

  it("unfolds what is alike and folds it again", () => {
    const open: View = { ...CLOSED, open: ["layers"] };
    const unfolded = engine.unfold(0, open, "fold:layers.0");
    expect(ids(unfolded).filter((id) => id.startsWith("module:"))).toHaveLength(12);
    expect(ids(engine.unfold(0, unfolded, "module:layers.3"))).toContain("fold:layers.0");
  });

  it("opens one level at a time, everything at once, and never more than the limit", () => {
    const one = engine.openMore(0, CLOSED, "", 1, 300);
    expect(one.open).toContain("layers");
    const all = engine.openMore(0, CLOSED, "", 99, 1500);
    expect(ids(all).filter((id) => id.startsWith("module:") || id.startsWith("fold:"))).toEqual([]);
    expect(engine.draw(0, engine.openMore(0, CLOSED, "", 99, 40), "").size).toBeLessThanOrEqual(40);
  });

  it("opens only what lies below a box", () => {
    const open: View = { ...CLOSED, open: ["layers"], unfolded: ["layers"] };
    const below = engine.openMore(0, open, "module:layers.4", 99, 300);
    expect(below.open!.filter((id) => id.startsWith("layers.")).sort()).toEqual([
      "layers.4",
      "layers.4.attention",
      "layers.4.mlp",
    ]);
  });

  it("reveals a hidden operation by its name or id", () => {
    const byId = engine.reveal(0, CLOSED, ":n7_2")!;
    expect(byId.id).toBe(":n7_2");
    expect(ids(byId.view)).toContain(":n7_2");
    const byName = engine.reveal(0, CLOSED, "layers.7.mlp")!;
    expect(ids(byName.view)).toContain(byName.id);
    const folded = engine.reveal(0, { ...CLOSED, open: ["layers"] }, "layers.7")!;
    expect(ids(folded.view)).toContain("module:layers.7");
    expect(engine.reveal(0, CLOSED, "no such module")).toBeNull();
    const elsewhere = engine.reveal(0, { ...CLOSED, root: "layers.1" }, ":mask")!;
    expect(elsewhere.view.root).toBe("");
  });

  it("tells in which box something can be seen", () => {
    expect(engine.visibleOf(0, CLOSED, [":n7_2", ":mask"])).toEqual(["module:layers", ":mask"]);
    expect(engine.boxesOf(0, { ...CLOSED, open: ["layers"] }, ["layers.3.mlp", "nothing"])).toEqual(["fold:layers.0"]);
  });

  it("finds by name, type, operator and status, in order", () => {
    expect(
      engine
        .search(0, "mlp")
        .map((hit) => hit.id)
        .slice(0, 2),
    ).toEqual(["module:layers.0.mlp", ":n0_4"]);
    expect(engine.search(0, "Attention layers.3")).toHaveLength(5); // the module and what is in it
    expect(engine.search(0, "/op[0-1]$|op0 /").length).toBeGreaterThan(0);
    expect(engine.search(0, "/[/")).toEqual([]);
    expect(engine.search(0, "  ")).toEqual([]);
    expect(engine.search(0, "placeholder").map((hit) => hit.id)).toEqual([":x"]);
  });

  it("describes a module with its surroundings", () => {
    const [details] = engine.details(0, ["module:layers.1"]);
    expect(details!.rows).toContainEqual(["operations", "8"]);
    expect(details!.producers.map((each) => each.id).sort()).toEqual([":mask", ":n0_7"]);
    expect(details!.consumers.map((each) => each.id)).toEqual([":n2_0", ":n2_7"]);
    expect(engine.details(0, ["nothing"])).toEqual([]);
  });

  it("lists the modules as a tree", () => {
    const rows = engine.tree(0);
    expect(rows[0]).toMatchObject({ fqn: "", type: "Model", depth: 0 });
    expect(rows.find((row) => row.fqn === "layers.3.mlp")).toMatchObject({ depth: 3, status: "traced" });
  });
});

describe("overlays", () => {
  const overlay = (given: Partial<Overlay> & { values: Overlay["values"] }): Overlay => ({
    name: "o",
    kind: "number",
    unit: "",
    combine: "sum",
    diverging: false,
    ...given,
  });
  const number = (fqn: string, value: number): Overlay["values"][number] => ({ fqn, number: value, text: "" });
  const text = (fqn: string, value: string): Overlay["values"][number] => ({ fqn, number: null, text: value });
  const painted = (view: View = CLOSED): Record<string, string> =>
    Object.fromEntries(engine.draw(0, view, "o").painted.map(([id, paint]) => [id, `${paint.text} ${paint.style}`]));
  beforeEach(() => loaded("language_model"));

  it("combines what lies in a closed module", () => {
    const values = [number("layers.0.mlp", 1), number("layers.0.attention", 2), number("layers.3.mlp", 4)];
    engine.setOverlays([overlay({ values })]);
    expect(painted()).toEqual({ "module:layers": "7 pb-ramp-8" });
    engine.setOverlays([overlay({ values, combine: "max" })]);
    expect(painted()).toEqual({ "module:layers": "4 pb-ramp-8" });
    engine.setOverlays([overlay({ values, combine: "mean", unit: "ms" })]);
    expect(painted()).toEqual({ "module:layers": "2.33 ms pb-ramp-8" });
    const open = painted({ ...CLOSED, open: ["layers", "layers.0"] });
    expect(open["module:layers.0.mlp"]).toBe("1 ms pb-ramp-0");
  });

  it("does not count what lies in a module that has a value itself", () => {
    engine.setOverlays([overlay({ values: [number("layers.0", 10), number("layers.0.mlp", 1)] })]);
    expect(painted()).toEqual({ "module:layers": "10 pb-ramp-8" });
  });

  it("puts zero in the middle of a diverging scale", () => {
    engine.setOverlays([
      overlay({ values: [number("layers.0", -1), number("layers.1", 4), number("layers.2", 0)], diverging: true }),
    ]);
    const found = painted({ ...CLOSED, open: ["layers"], unfolded: ["layers"] });
    expect(found).toMatchObject({
      "module:layers.0": "-1 pb-diverging-3",
      "module:layers.1": "4 pb-diverging-8",
      "module:layers.2": "0 pb-diverging-4",
    });
  });

  it("keeps categories apart that would be folded, and says how mixed a module is", () => {
    engine.setOverlays([
      overlay({
        kind: "precision",
        values: Array.from({ length: 12 }, (_, i) => text(`layers.${i}`, i === 4 ? "int4" : "int8")),
      }),
    ]);
    const drawing = engine.draw(0, { ...CLOSED, open: ["layers"] }, "o");
    expect(drawing.boxes.filter((box) => box.kind === "fold").map((box) => box.title)).toEqual(["0 … 3", "5 … 11"]);
    expect(engine.boxesOf(0, { ...CLOSED, open: ["layers"] }, ["layers.7"])).toEqual(["fold:layers.5"]);
    expect(painted()).toEqual({ "module:layers": "int8 92 % pb-precision-int8" });
    expect(drawing.legend.map((row) => row.text)).toEqual(["int8", "int4"]);
    expect(drawing.rule).toBe("A closed module shows the precision of most of its layers");
  });

  it("says how the numbers of a closed module become one", () => {
    engine.setOverlays([overlay({ values: [number("layers.0", 10), number("layers.1", 1)], combine: "min" })]);
    expect(engine.draw(0, CLOSED, "o").rule).toBe("A closed module shows the smallest value of its layers");
  });

  it("shows nothing for an overlay that is not there", () => {
    expect(engine.draw(0, CLOSED, "nothing").painted).toEqual([]);
  });
});

it("lists failures with reason and place, and answers before a document is there", async () => {
  await loaded("failing");
  expect(engine.troubles(0)).toMatchObject([
    { id: ":gate", fqn: "gate", status: "failed", reason: "data-dependent branch", place: "net.py:7" },
  ]);
  expect(() => new Engine().draw(0, CLOSED, "")).toThrow("No document is loaded");
  expect(() => engine.draw(3, CLOSED, "")).toThrow("no document number 4");
});

it("leads from a model that failed as a whole to its reason", async () => {
  const document = golden("failing");
  const root = { ...document.modules[0]!, status: "failed" as const, failure: { ...document.failures[0]!, fqn: "" } };
  engine = new Engine();
  await engine.load({ ...document, modules: [root, ...document.modules.slice(1)] });
  expect(engine.troubles(0)[0]).toMatchObject({ id: "module:", fqn: "" });
  const found = engine.reveal(0, CLOSED, "module:")!;
  expect(found.id).toBe("module:");
  expect(engine.details(0, [found.id])[0]!.failure!.reason).toBe("data-dependent branch");
  expect(engine.draw(0, CLOSED, "").counts[0]).toEqual(["failed", 2]);
});

it("shows several levels with what differs", async () => {
  engine = new Engine();
  const documents = [golden("reused"), golden("reused")];
  const summary = await engine.load({
    documents,
    titles: ["a", "b"],
    arrangement: "compare",
    overlays: [],
    overlay: "",
    marks: [{ document: 1, id: ":add", change: "added", note: "is new" }],
    version: "1.1",
  });
  expect(summary).toMatchObject({
    arrangement: "compare",
    documents: [
      { title: "a", marks: 0 },
      { title: "b", marks: 1 },
    ],
  });
  expect(engine.draw(1, CLOSED, "").boxes.find((box) => box.id === ":add")!.change).toBe("added");
  expect(engine.details(1, [":add"])[0]!.rows).toContainEqual(["change", "is new"]);
});
