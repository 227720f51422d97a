/** The Python lines that do the same as the bench. */

import { make } from "../render/dom";
import { sharedNow } from "../shared";
import { copyButton } from "./buttons";
import { type Cleanups, listen } from "./live";
import type { BenchModel } from "./model";

export function codeView(model: BenchModel, ends: Cleanups): HTMLElement {
  const code = make("code", {});
  const update = (): void => {
    code.textContent = model.get("code");
  };
  listen(model, ["code"], update, ends);
  update();
  const buttons = make(
    "div",
    { class: "pbb-actions" },
    copyButton(() => model.get("code"), "Copy"),
  );
  const insert = sharedNow().insertBelow;
  if (insert) {
    const click = (): void => insert(model.get("code"), buttons);
    const title = "Put these lines into a cell below this one";
    buttons.append(make("button", { title, click }, "Insert below"));
  }
  return make(
    "details",
    { class: "pbb-code" },
    make("summary", {}, "The same in Python"),
    buttons,
    make("pre", { tabindex: "0", role: "region", "aria-label": "Python code" }, code),
  );
}
