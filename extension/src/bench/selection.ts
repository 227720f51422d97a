/** What the buttons of the table act on, as a chip that can be edited: "blocks.1*.up · 11 layers", "all layers". */

import { make } from "../render/dom";
import { counted } from "./numbers";

export interface Chosen {
  /** The keys of rules that stand for it; "" for all layers. */
  pattern: string;
  layers: number;
  /** Whether anything is typed, picked or marked. */
  isOwn: boolean;
}

export class SelectionChip {
  readonly element: HTMLElement;
  private readonly count = make("span", { class: "pbb-selected-count", role: "status" });
  private readonly field: HTMLInputElement;
  private readonly remove: HTMLButtonElement;
  private isTyping = false;

  /** `edited` hears what is typed into the chip, `cleared` that everything is meant again. */
  constructor(edited: (text: string) => void, cleared: () => void) {
    this.field = make("input", {
      type: "text",
      class: "pbb-selected",
      "aria-label": "Selected layers",
      placeholder: "all layers",
      title: "What the buttons act on. Type a name or a pattern such as blocks.1*.up to select other layers",
      spellcheck: "false",
      input: () => {
        this.isTyping = true;
      },
      change: () => {
        this.isTyping = false;
        edited(this.field.value);
      },
      keydown: (event: KeyboardEvent) => {
        if (event.key !== "Escape" || !this.field.value) return;
        event.preventDefault();
        this.isTyping = false;
        cleared();
      },
    });
    const title = "Select all layers";
    this.remove = make("button", { class: "pbb-icon", "aria-label": title, title, click: cleared }, "✕");
    const parts = [this.field, this.count, this.remove];
    this.element = make("div", { class: "pbb-selection", role: "group", "aria-label": "Selection" }, ...parts);
  }

  show({ pattern, layers, isOwn }: Chosen): void {
    const text = isOwn ? pattern : "";
    if (!this.isTyping) this.field.value = text;
    this.field.style.width = `calc(${Math.min(34, Math.max(10, text.length))}ch + 20px)`; // and its padding
    if (text) this.field.title = text;
    this.count.textContent = counted(layers, "layer");
    this.element.dataset["own"] = String(isOwn);
    this.remove.hidden = !isOwn;
  }
}
