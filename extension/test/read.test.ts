/** Documents that cannot be shown are refused with what is wrong, where, and what to do. */

import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { expect, it } from "vitest";
import { check, read } from "../src/render/read";

const text = readFileSync(new URL("../../tests/golden/reused.graph.json", import.meta.url), "utf8");
const data = (): Record<string, any> => JSON.parse(text);
const changed = (change: (d: Record<string, any>) => void): Record<string, any> => {
  const made = data();
  change(made);
  return made;
};

it("reads text, gzip, base64 in an envelope, and parsed documents alike", async () => {
  const plain = await read(text);
  const zipped = gzipSync(text);
  expect(await read(new Uint8Array(zipped))).toEqual(plain);
  expect(await read({ version: "1.1", gzip: zipped.toString("base64") })).toEqual(plain);
  expect(await read(JSON.stringify({ version: "1.1", gzip: zipped.toString("base64") }))).toEqual(plain);
  expect(await read(data())).toEqual(plain);
  expect(plain.documents[0]!.model_type).toBe("Net");
});

it("reads documents that explain no sizes yet", async () => {
  const older = changed((d) => {
    d.version = "1.1";
    delete d.sizes;
  });
  expect((await read(older)).documents[0]!.sizes).toEqual([]);
  const diagram = { documents: [older], titles: [], arrangement: "levels", overlays: [], overlay: "", marks: [] };
  expect((await read({ ...diagram, version: "1.1" })).documents[0]!.sizes).toEqual([]);
});

it.each([
  [[{ name: "H", meaning: "" }], /"H" of the document stands for ""/],
  [
    [
      { name: "H", meaning: "x.shape[2]" },
      { name: "H", meaning: "y.shape[2]" },
    ],
    /explains the size "H" twice/,
  ],
  [[{ name: "H" }], /lacks the field "meaning"/],
])("refuses sizes that say nothing or two things: %j", (sizes, why) => {
  expect(() => check(changed((d) => (d.sizes = sizes)))).toThrow(why);
});

it("shows pairs of surrogates, tabs and line breaks", async () => {
  expect((await read(changed((d) => (d.model_type = "𝛼\t1\n2")))).documents[0]!.model_type).toBe("𝛼\t1\n2");
});

it("refuses numbers that are none", () => {
  const overlay = {
    name: "ms",
    kind: "number",
    unit: "",
    combine: "sum",
    diverging: false,
    values: [{ fqn: "", number: Infinity, text: "" }],
  };
  const diagram = {
    documents: [data()],
    titles: [],
    arrangement: "levels",
    overlays: [overlay],
    overlay: "",
    marks: [],
    version: "1.1",
  };
  expect(() => check(diagram)).toThrow(/number must be a finite number/);
});

it.each([
  ["cut off", text.slice(0, 500), /cut off.*Trace the model again/],
  ["no object", "[1]", /must be a JSON object/],
  ["nothing", "null", /must be a JSON object/],
  ["no base64", { version: "1.1", gzip: "§" }, /no base64/],
  ["damaged gzip", { version: "1.1", gzip: gzipSync(text).subarray(0, 200).toString("base64") }, /damaged or cut off/],
  ["newer", changed((d) => (d.version = "2.0")), /version 2\.0.*newer prepbench/],
  ["older", changed((d) => (d.version = "1.0")), /older prepbench/],
  ["no version", changed((d) => delete d.version), /version none/],
  [
    "missing field",
    changed((d) => delete d.graphs[0].nodes[1].fqn),
    /document\.graphs\[0\]\.nodes\[1\] lacks the field "fqn"/,
  ],
  [
    "wrong type",
    changed((d) => (d.modules[0].parameters = "many")),
    /document\.modules\[0\]\.parameters must be of type integer/,
  ],
  ["wrong choice", changed((d) => (d.modules[0].status = "fine")), /document\.modules\[0\]\.status must be one of/],
  ["no list", changed((d) => (d.groups = {})), /document\.groups must be a list/],
  [
    "circle",
    changed((d) => ((d.groups[1].parent = "block@2"), (d.groups[2].parent = "block"))),
    /hold each other: "block" in "block@2" in "block"/,
  ],
  ["itself", changed((d) => (d.groups[1].parent = "block")), /hold each other/],
  ["group missing", changed((d) => (d.groups[1].parent = "nowhere")), /lies in "nowhere"/],
  ["no root", changed((d) => d.groups.shift()), /the model itself/],
  ["negative count", changed((d) => (d.modules[0].parameters = -1)), /parameters counts something and cannot be -1/],
  ["huge count", changed((d) => (d.modules[0].parameters = 1e300)), /larger than any number/],
  ["control character", changed((d) => (d.modules[0].type = "a\u001b[31m")), /type holds "\\u001b" at position 1/],
  ["reversed text", changed((d) => (d.model_type = "a\u202eb")), /no printable text/],
  ["half a pair", changed((d) => (d.model_type = "a\ud800b")), /no printable text/],
  ["input missing", changed((d) => d.graphs[0].nodes[1].inputs.push("gone")), /uses "gone", which its graph/],
  [
    "nodes in a circle",
    changed((d) => d.graphs[0].nodes[0].inputs.push(d.graphs[0].nodes[1].id)),
    /nodes of the document use each other/,
  ],
  [
    "too deep",
    changed((d) => {
      for (let i = 0; i < 600; i++) d.groups.push({ ...d.groups[1], id: `deep${i}`, parent: i ? `deep${i - 1}` : "" });
    }),
    /nest \d+ deep; 500 can be shown/,
  ],
  ["group twice", changed((d) => d.groups.push(d.groups[1])), /two groups "block"/],
  ["node twice", changed((d) => d.graphs[0].nodes.push(d.graphs[0].nodes[0])), /two nodes ":x"/],
  [
    "node nowhere",
    changed((d) => (d.graphs[0].nodes[1].group = "nowhere")),
    /Node ":block_linear_0" lies in group "nowhere"/,
  ],
  [
    "no documents",
    { version: "1.1", documents: [], titles: [], arrangement: "levels", overlays: [], overlay: "", marks: [] },
    /list of documents is empty/,
  ],
])("refuses: %s", async (_, source, words) => {
  await expect(read(source as object)).rejects.toThrow(words);
});

it("checks a large document quickly", () => {
  const made = data();
  const node = made.graphs[0].nodes[1];
  made.graphs[0].nodes = Array.from({ length: 20_000 }, (_, i) => ({
    ...node,
    id: `:n${i}`,
    inputs: i ? [`:n${i - 1}`] : [],
  }));
  const start = performance.now();
  check(made);
  expect(performance.now() - start).toBeLessThan(1000);
});
