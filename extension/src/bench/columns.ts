/** The menu of the table's columns: which are shown, and that there are more. */

import { make } from "../render/dom";
import type { Column } from "./cells";
import { DIM } from "./dim";

export class ColumnMenu {
  readonly element: HTMLDetailsElement;
  private readonly summary = make("summary", {});
  private readonly list = make("div", { class: "pbb-columns-list", role: "group", "aria-label": "Columns" });
  private own: ReadonlySet<string> | null = null;
  private shown = "";

  constructor(private readonly changed: () => void) {
    const title = "Columns of the table";
    this.element = make("details", { class: "pbb-columns", "data-name": title }, this.summary, this.list);
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.element.open) return;
      event.preventDefault();
      this.element.open = false;
      this.summary.focus();
    });
    this.element.addEventListener("focusout", ({ relatedTarget }) => {
      if (relatedTarget && !this.element.contains(relatedTarget as Node)) this.element.open = false;
    });
  }

  /** The keys that somebody chose; null where the width decides. */
  get chosen(): ReadonlySet<string> | null {
    return this.own;
  }

  show(all: readonly Column[], shown: readonly Column[]): void {
    const keys = new Set(shown.map(({ key }) => key));
    const state = JSON.stringify([all.map(({ key, title }) => [key, title]), [...keys], this.own === null]);
    if (state === this.shown) return;
    this.shown = state;
    const count = all.filter(({ key }) => keys.has(key)).length;
    this.summary.replaceChildren("Columns ", make("span", DIM, `${count} of ${all.length}`));
    const focused = this.list.contains(document.activeElement) ? document.activeElement?.getAttribute("name") : null;
    this.list.replaceChildren(...all.map((column) => this.boxOf(column, keys)), this.fitting());
    if (focused) this.list.querySelector<HTMLElement>(`[name="${CSS.escape(focused)}"]`)?.focus();
  }

  private boxOf({ key, title, help }: Column, keys: ReadonlySet<string>): HTMLElement {
    const change = (): void => {
      const others = [...keys].filter((each) => each !== key);
      this.choose(new Set(box.checked ? [...others, key] : others));
    };
    const box = make("input", { type: "checkbox", name: key, change });
    box.checked = keys.has(key);
    return make("label", { title: help }, box, ` ${title}`);
  }

  private fitting(): HTMLElement {
    const click = (): void => this.choose(null);
    const attributes = { class: "pbb-quiet", name: "fit", "aria-pressed": this.own === null, click };
    return make("button", attributes, "As many as fit");
  }

  private choose(keys: ReadonlySet<string> | null): void {
    this.own = keys;
    this.changed();
  }
}
