/** Buttons that several steps have. */

import { copyIcon, copyText, make } from "../render/dom";
import { act, type BenchModel } from "./model";

const SAID_MS = 1600;

/** `name` is what is read aloud where several buttons copy. */
export function copyButton(text: () => string, label: string, name = ""): HTMLButtonElement {
  const click = async (): Promise<void> => {
    await copyText(text());
    button.replaceChildren(copyIcon(), " Copied");
    setTimeout(() => button.replaceChildren(copyIcon(), ` ${label}`), SAID_MS);
  };
  const button = make("button", { click }, copyIcon(), ` ${label}`);
  if (name) button.setAttribute("aria-label", name);
  return button;
}

type Plain =
  | "undo"
  | "redo"
  | "compile"
  | "cancel"
  | "cancel_all"
  | "capture"
  | "again"
  | "apply_fixes"
  | "measure_layers"
  | "stop_training"
  | "no_training";

/** A button that asks Python for something that needs no more words. */
export function actButton(model: BenchModel, action: Plain, label: string, more = {}): HTMLButtonElement {
  return make("button", { ...more, click: () => act(model, action, {}) }, label);
}

/** Text that is folded after some lines. */
export function folded(title: string, text: string, name = title): HTMLElement {
  return make("details", { "data-name": name }, make("summary", {}, title), make("pre", {}, text));
}
