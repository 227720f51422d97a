import { expect, it } from "vitest";

import { saveChanges } from "../src/kept";

it("sends what was set", () => {
  const sent: string[] = [];
  expect(saveChanges({ save_changes: () => void sent.push("sent") })).toBe(true);
  expect(sent).toEqual(["sent"]);
});

it("goes on where the widget was closed while its page still stands", () => {
  const closed = {
    save_changes(): void {
      throw new Error("Syncing error: no comm channel defined");
    },
  };
  expect(saveChanges(closed)).toBe(false);
});
