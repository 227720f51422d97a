/** What Graphviz writes is read; anything else is refused. */

import { readFileSync } from "node:fs";
import { Graphviz } from "@hpcc-js/wasm-graphviz";
import { expect, it } from "vitest";
import { parseSvg, type SvgElement } from "../src/render/svgtree";

function texts(element: SvgElement): string[] {
  return [...(element.name === "text" ? [element.text] : []), ...element.children.flatMap(texts)];
}

it("reads real pictures, with names that are markup as text", async () => {
  const graphviz = await Graphviz.load();
  const cases = JSON.parse(readFileSync(new URL("../../tests/golden/failing.views.json", import.meta.url), "utf8")) as {
    dot: string;
  }[];
  const svg = parseSvg(graphviz.layout(cases[0]!.dot, "svg", "dot"));
  expect(svg.name).toBe("svg");
  expect(parseFloat(svg.attributes["width"]!)).toBeGreaterThan(50);
  expect(texts(svg)).toContain('<b>"x"\\</b>');
  expect(texts(svg)).toContain("✕ failed");
});

it("decodes entities once", () => {
  const svg = parseSvg('<svg a="&lt;&#39;&#x41;"><text>&amp;lt; &quot;</text></svg>');
  expect(svg.attributes["a"]).toBe("<'A");
  expect(svg.children[0]!.text).toBe('&lt; "');
});

it.each(["", "<p></p>", "<svg>", "<svg></g></svg>", "<svg><a b=c></a></svg>", "<svg></svg><svg"])(
  "refuses %j",
  (text) => {
    expect(() => parseSvg(text)).toThrow(/picture/);
  },
);
