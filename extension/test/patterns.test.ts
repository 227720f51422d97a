import { expect, it } from "vitest";

import { readQuery } from "../src/bench/filters";
import { blocksOf, keyToRegExp, Patterns, patternOf } from "../src/bench/patterns";

/** What a rule with these keys takes, of all names. */
function taken(keys: readonly string[], names: readonly string[]): string[] {
  const tests = keys.map(keyToRegExp);
  return names.filter((name) => tests.some((test) => test.test(name)));
}

function keysFor(names: readonly string[], chosen: readonly string[], typed = ""): string[] {
  const layers = new Set(chosen.map((name) => names.indexOf(name)));
  const keys = new Patterns(names).patternsFor(layers, readQuery(typed).keys);
  expect(taken(keys, names).sort()).toEqual([...chosen].sort());
  return keys;
}

const BLOCKS = Array.from({ length: 21 }, (_, at) => [
  `blocks.${at}.up`,
  `blocks.${at}.mlp.up`,
  `blocks.${at}.q`,
]).flat();
const NAMES = [...BLOCKS, "head"];
const ups = (wanted: (at: number) => boolean): string[] =>
  NAMES.filter((name) => /^blocks\.\d+\.up$/.test(name) && wanted(Number(name.split(".")[1])));

it("keeps a typed pattern as the one rule for what it finds", () => {
  const found = NAMES.filter((name) => readQuery("blocks.1*.up").fits(name, ""));
  expect(keysFor(NAMES, found, "blocks.1*.up")).toEqual(["blocks.1*.up"]);
  const both = NAMES.filter((name) => /\.(q|up)$/.test(name));
  expect(keysFor(NAMES, both, "*.q, *.up")).toEqual(["*.q", "*.up"]);
  expect(
    keysFor(
      NAMES,
      ups(() => true),
      "re:blocks\\.\\d+\\.up",
    ),
  ).toEqual(["re:blocks\\.\\d+\\.up"]);
});

it("finds one key for the layers of a row and no others", () => {
  expect(
    keysFor(
      NAMES,
      ups(() => true),
    ),
  ).toEqual(["re:blocks\\.\\d+\\.up"]); // blocks.*.up takes blocks.*.mlp.up, too
  expect(
    keysFor(
      NAMES,
      NAMES.filter((name) => name.endsWith(".q")),
    ),
  ).toEqual(["blocks.*.q"]);
  expect(
    keysFor(
      NAMES,
      NAMES.filter((name) => name.startsWith("blocks.1.")),
    ),
  ).toEqual(["blocks.1.*"]);
  expect(
    keysFor(
      NAMES,
      ups((at) => at === 3 || at === 17),
    ),
  ).toEqual(["re:blocks\\.(3|17)\\.up"]);
  expect(keysFor(NAMES, ["blocks.2.q", "blocks.3.q", "blocks.4.q"])).toEqual(["blocks.[2-4].q"]);
  expect(keysFor(NAMES, ["blocks.2.q"])).toEqual(["blocks.2.q"]);
});

it("names whole blocks where that is shorter", () => {
  const two = NAMES.filter((name) => /^blocks\.(4|12)\./.test(name));
  expect(keysFor(NAMES, two)).toEqual(["blocks.4.*", "blocks.12.*"]);
});

it("takes what lies inside of a module, as a rule does", () => {
  expect(readQuery("blocks.?").fits("blocks.1.mlp.up", "linear")).toBe(true);
  expect(readQuery("blocks.?").fits("blocks.12.up", "linear")).toBe(false);
});

it("knows the block of a layer", () => {
  const names = ["0.layers.0.q", "0.layers.1.q", "0.layers.1.mlp.0", "0.layers.1.mlp.2", "0.head"];
  expect(blocksOf(names)).toEqual(["0.layers.0", "0.layers.1", "0.layers.1", "0.layers.1", ""]);
  expect(patternOf("0.layers.1.2.q1")).toBe("*.layers.*.*.q1");
});

it("finds exact keys for any choice", () => {
  let state = 7;
  const random = (): number => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return state / 2147483648;
  };
  for (let turn = 0; turn < 60; turn++) {
    const share = random();
    const chosen = NAMES.filter(() => random() < share);
    if (chosen.length) keysFor(NAMES, chosen);
  }
});
