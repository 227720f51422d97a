/** Scenes and DOT are what Python makes of the same documents and views. */

import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { Scene, View } from "../src/render/boxes";
import { toDot } from "../src/render/dot";
import { Lookup } from "../src/render/lookup";
import { read } from "../src/render/read";
import { makeScene } from "../src/render/scene";

const FOLDER = new URL("../../tests/golden/", import.meta.url);

interface Case {
  view: View;
  marks: Record<string, string>;
  scene: Scene;
  dot: string;
}

for (const file of readdirSync(FOLDER).filter((name) => name.endsWith(".graph.json"))) {
  describe(file, async () => {
    const diagram = await read(readFileSync(new URL(file, FOLDER), "utf8"));
    const lookup = new Lookup(diagram.documents[0]!);
    const cases = JSON.parse(readFileSync(new URL(file.replace(".graph.", ".views."), FOLDER), "utf8")) as Case[];
    cases.forEach((each, i) => {
      it(`view ${i}`, () => {
        const scene = makeScene(lookup, each.view, new Map(Object.entries(each.marks)));
        expect(scene).toEqual(each.scene);
        expect(toDot(scene)).toBe(each.dot);
      });
    });
  });
}
