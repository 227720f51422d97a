/** One run of the history: its name, why it is as it is, and what can be done with it. */

import { make } from "../render/dom";
import { copyButton } from "./buttons";
import { DIM } from "./dim";
import { GO } from "./message";
import { act, type BenchModel, type RunNow } from "./model";

export function detailsOf(model: BenchModel, run: RunNow): HTMLElement {
  const { id, name, score, spread, why, error, stale, slower } = run;
  const rename = (): void => {
    if (box.value.trim() && box.value.trim() !== name) act(model, "rename_run", { id, name: box.value.trim() });
  };
  const box = make("input", { type: "text", value: name, "aria-label": "Name of the run", change: rename });
  const parts = [make("div", { class: "pbb-line" }, box, ...buttons(model, run))];
  if (spread) parts.push(make("p", DIM, `Score ${score}; 95 % interval ${spread}.`));
  if (stale.length) {
    parts.push(make("p", { class: "pbb-old" }, `These results are old: ${stale.join("; ")}.`));
  }
  if (why) parts.push(make("p", { class: slower ? "pbb-remedy pbb-slower" : "pbb-remedy" }, why));
  if (error) {
    const report = copyButton(() => error, "Copy report");
    const text = make("pre", {}, error);
    parts.push(make("div", { class: "pbb-message pbb-error" }, make("strong", {}, "This run failed"), text, report));
  }
  return make("section", { class: "pbb-stack", "aria-label": `Run ${name}` }, ...parts);
}

function buttons(model: BenchModel, { id, name, pinned, target, lacks_float: lacks }: RunNow): HTMLElement[] {
  const pin = (): void => act(model, "pin_run", { id, pinned: !pinned });
  const restore = (): void => act(model, "restore_run", { id });
  // a run may be minutes of measuring, and undo does not bring it back: the second press deletes
  const remove = ({ currentTarget }: Event): void => {
    const button = currentTarget as HTMLButtonElement;
    if (button.dataset["asks"]) {
      act(model, "delete_run", { id });
      return;
    }
    button.dataset["asks"] = "true";
    button.replaceChildren("Delete for good?");
    const forget = (): void => {
      delete button.dataset["asks"];
      button.replaceChildren("Delete");
    };
    button.addEventListener("blur", forget, { once: true });
  };
  const compare = ({ target: button }: Event): void => {
    act(model, "repair", { how: "compare_with_float", value: id, again: "" });
    // how far it is, and what comes out, stands there
    (button as Element).dispatchEvent(new CustomEvent(GO, { detail: "run", bubbles: true }));
  };
  const faster = `Compile the float model for ${target}, and time both in the same rounds`;
  const again = "Make its choices the current ones, with all targets that it was compiled for";
  return [
    ...(lacks ? [make("button", { title: faster, click: compare }, "Compare with float")] : []),
    make("button", { "aria-pressed": String(pinned), title: "Keep it at the top", click: pin }, "Pin"),
    make("button", { title: again, click: restore }, "Restore"),
    make("button", { "aria-label": `Delete ${name}`, click: remove }, "Delete"),
  ];
}
