import { expect, test } from "vitest";
import { groupedReasons } from "../src/bench/reasons";

test("equal reasons are one line with their layers, most first", () => {
  const whys = ["", "too small", ...Array.from({ length: 27 }, () => "logits say too little"), "too small"];
  const found = groupedReasons(whys);
  expect(found.map(({ text, layers }) => [text, layers.length])).toEqual([
    ["logits say too little", 27],
    ["too small", 2],
  ]);
  expect(found[1]!.layers).toEqual([1, 29]);
});

test("reasons that differ in numbers only are one, with ranges", () => {
  const [one, other, ...rest] = groupedReasons([
    "SQNR 8.5 dB is below the floor of 10 dB",
    "SQNR 12 of 3",
    "SQNR 10 dB is below the floor of 10 dB",
    "SQNR 9.25 dB is below the floor of 10 dB",
  ]);
  expect(one).toEqual({ text: "SQNR 8.5 to 10 dB is below the floor of 10 dB", layers: [0, 2, 3] });
  expect(other).toEqual({ text: "SQNR 12 of 3", layers: [1] });
  expect(rest).toEqual([]);
});
