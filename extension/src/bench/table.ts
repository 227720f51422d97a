/**
 * The table of layers. Only rows in sight are in the page, so that ten thousand layers scroll as twenty do; all rows
 * are equally high, and empty rows above and below keep the scroll bar true.
 */

import { make } from "../render/dom";
import { type Column, cellsOf, columnsOf, namesWidth, scaleOf, shownColumns, spoken } from "./cells";
import { ColumnMenu } from "./columns";
import { Marked } from "./marked";
import type { Row, Rows } from "./rows";

export const ROW_HEIGHT = 28;
const SPARE = 8; // rows above and below the ones in sight

export interface Order {
  sort: string;
  down: boolean;
}

export interface TableEvents {
  /** Other rows are marked; `active` is the one with the focus. */
  mark(active: Row | null): void;
  sort(order: Order): void;
  open(group: string): void;
  edit(): void;
}

export class LayerTable {
  readonly marked = new Marked();
  readonly element: HTMLElement;
  private list: readonly Row[] = [];
  private rows: Rows | null = null;
  private open: ReadonlySet<string> = new Set();
  private order: Order = { sort: "", down: false };
  private all: readonly Column[] = [];
  private columns: readonly Column[] = [];
  /** The choice of columns, to be placed beside the table. */
  readonly menu = new ColumnMenu(() => this.fit());
  private first = -1;
  private last = -1;
  private width = 0;
  private asked: ReadonlySet<string> | null = null;
  private readonly above = make("tbody", { "aria-hidden": "true" });
  private readonly body = make("tbody");
  private readonly below = make("tbody", { "aria-hidden": "true" });
  private readonly head = make("tr");
  private readonly widths = make("colgroup");
  private readonly table: HTMLTableElement;

  constructor(private readonly events: TableEvents) {
    this.table = make(
      "table",
      { role: "treegrid", "aria-multiselectable": "true", "aria-label": "Layers" },
      this.widths,
      make("thead", {}, this.head),
      this.above,
      this.body,
      this.below,
    );
    this.element = make("div", { class: "pbb-scroll" }, this.table);
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.body.addEventListener("click", (event) => this.click(event));
    this.body.addEventListener("dblclick", () => this.events.edit());
    this.table.addEventListener("keydown", (event) => this.key(event));
    this.head.addEventListener("focusin", ({ target }) => showWhole(target as HTMLElement));
    new ResizeObserver(() => this.fit()).observe(this.element);
  }

  /** Shows these rows; marks and the place that is scrolled to stay. */
  show(rows: Rows, list: readonly Row[], open: ReadonlySet<string>, order: Order, stale: string): void {
    [this.rows, this.list, this.open, this.order] = [rows, list, open, order];
    this.all = columnsOf(rows, list, stale);
    this.element.classList.toggle("pbb-stale-results", stale !== "");
    this.table.setAttribute("aria-rowcount", String(list.length + 1));
    this.marked.active = Math.min(this.marked.active, Math.max(0, list.length - 1));
    this.width = -1; // also where there is no place yet
    this.fit();
  }

  /** Shows the columns that are chosen, or that there is room for. */
  private fit(): void {
    const { clientWidth } = this.element;
    const asked = this.menu.chosen;
    if (clientWidth === this.width && asked === this.asked) {
      this.draw();
      return;
    }
    [this.width, this.asked] = [clientWidth, asked];
    this.columns = shownColumns(this.all, clientWidth || 600, asked);
    this.menu.show(this.all.slice(1), this.columns);
    this.drawHead();
    this.refresh();
    this.scrolled();
  }

  private scrolled(): void {
    this.draw();
    const { scrollLeft, scrollWidth, clientWidth } = this.element;
    this.element.dataset["more"] = String(scrollLeft + clientWidth < scrollWidth - 1); // to the right
  }

  /** Draws again what may have changed in the rows in sight. */
  refresh(): void {
    this.first = -1;
    this.draw();
  }

  /** The layers of the row that holds an element of the table; none outside of rows. */
  membersAt(target: Element): readonly number[] {
    const row = target.closest<HTMLElement>("[data-at]");
    return row ? (this.list[Number(row.dataset["at"])]?.members ?? []) : [];
  }

  /** Brings the first marked row into sight. */
  revealMarked(): void {
    const whole = this.list.findIndex((row) => this.marked.has(row) === "all");
    const at = whole >= 0 ? whole : this.list.findIndex((row) => this.marked.has(row) === "some");
    if (at < 0) return;
    this.marked.active = this.marked.anchor = at;
    this.scrollTo(at);
    this.refresh();
  }

  focus(): void {
    this.scrollTo(this.marked.active);
    this.draw();
    this.rowElement(this.marked.active)?.focus({ preventScroll: true });
  }

  private drawHead(): void {
    const others = this.columns.slice(1);
    const cols = others.map(({ width }) => make("col", { style: `width:${width}px` }));
    const names = namesWidth(this.columns, this.width || 600); // before it has a place
    const needed = others.reduce((sum, { width }) => sum + width, names);
    this.widths.replaceChildren(make("col", { style: `width:${names}px` }), ...cols);
    this.element.style.setProperty("--pbb-names", `${names}px`);
    this.table.style.width = `max(100%, ${needed}px)`;
    const focused = this.head.contains(document.activeElement) ? document.activeElement?.textContent : null;
    this.head.replaceChildren(...this.columns.map((column) => this.headCell(column)));
    const again = [...this.head.querySelectorAll("button")].find((button) => button.textContent === focused);
    again?.focus();
  }

  private headCell(column: Column): HTMLElement {
    const { key, title, help, numeric } = column;
    const { sort, down } = this.order;
    const sorted = sort === key;
    const click = (): void => {
      if (!sorted) this.events.sort({ sort: key, down: false });
      else this.events.sort(down ? { sort: "", down: false } : { sort: key, down: true }); // third: as in the model
    };
    const sign = make("span", { class: "pbb-sign", "aria-hidden": "true" }, sorted ? (down ? "▾" : "▴") : "");
    const button = make("button", { title: `${help}. Click to sort.`, click }, title, sign);
    const state = sorted ? (down ? "descending" : "ascending") : "none";
    const scale = scaleOf(column);
    const parts = scale ? [button, make("small", { title: `A longer bar costs more: ${scale}` }, scale)] : [button];
    return make("th", { scope: "col", "aria-sort": state, class: numeric ? "pbb-number" : "" }, ...parts);
  }

  private draw(): void {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - SPARE);
    const count = Math.ceil((clientHeight || 400) / ROW_HEIGHT) + 2 * SPARE;
    const last = Math.min(this.list.length, first + count);
    if (first === this.first && last === this.last) return;
    const focused = this.body.contains(document.activeElement);
    [this.first, this.last] = [first, last];
    this.above.replaceChildren(this.gap(first));
    this.below.replaceChildren(this.gap(this.list.length - last));
    this.body.replaceChildren(...this.list.slice(first, last).map((row, at) => this.rowOf(row, first + at)));
    if (focused) this.rowElement(this.marked.active)?.focus({ preventScroll: true });
  }

  private gap(rows: number): HTMLElement {
    return make("tr", { style: `height:${rows * ROW_HEIGHT}px` });
  }

  private rowOf(row: Row, at: number): HTMLElement {
    const rows = this.rows!;
    const isGroup = row.layer < 0;
    const open = isGroup && this.open.has(row.group);
    const mark = this.marked.has(row);
    const attributes = {
      "aria-rowindex": at + 2,
      "aria-selected": String(mark === "all"),
      "aria-level": row.inside ? 2 : 1,
      "aria-label": spoken(row, rows),
      "data-at": at,
      "data-mark": mark,
      "data-pattern": isGroup ? rows.keyOf(row) : "",
      "data-fqn": isGroup ? "" : rows.data.layers[row.layer]!.fqn,
      "data-planned": isGroup ? "" : (rows.decision(row.layer)?.label ?? ""),
      tabindex: at === this.marked.active ? 0 : -1,
      ...(isGroup ? { "aria-expanded": String(open) } : {}),
      ...(row.members.some((layer) => rows.differs(layer)) ? { class: "pbb-differs" } : {}),
    };
    return make("tr", attributes, ...cellsOf(row, rows, this.columns, open, () => this.events.open(row.group)));
  }

  private rowElement(at: number): HTMLElement | null {
    return this.body.querySelector(`[data-at="${at}"]`);
  }

  private click(event: MouseEvent): void {
    const row = (event.target as Element).closest<HTMLElement>("[data-at]");
    if (!row) return;
    const at = Number(row.dataset["at"]);
    if (event.shiftKey) this.marked.reach(this.list, at);
    else if (event.ctrlKey || event.metaKey) this.marked.toggle(this.list, at);
    else this.marked.only(this.list, at);
    this.changed();
    this.rowElement(at)?.focus({ preventScroll: true });
  }

  private key(event: KeyboardEvent): void {
    if (!(event.target as Element).closest("[data-at]")) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW_HEIGHT) - 2);
    const steps: Record<string, number> = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -this.list.length,
      End: this.list.length,
    };
    const step = steps[event.key];
    const done = step !== undefined ? this.go(step, event) : this.command(event);
    if (done) event.preventDefault();
  }

  private go(step: number, event: KeyboardEvent): boolean {
    const at = Math.max(0, Math.min(this.list.length - 1, this.marked.active + step));
    if (event.shiftKey) this.marked.reach(this.list, at);
    else if (event.ctrlKey || event.metaKey) this.marked.active = at;
    else this.marked.only(this.list, at);
    this.scrollTo(at);
    this.changed();
    this.focus();
    return true;
  }

  private command(event: KeyboardEvent): boolean {
    const row = this.list[this.marked.active];
    const isGroup = row !== undefined && row.layer < 0;
    const isOpen = isGroup && this.open.has(row.group);
    if (event.key === " ") this.marked.toggle(this.list, this.marked.active);
    else if (event.key.toLowerCase() === "a" && (event.ctrlKey || event.metaKey)) this.marked.all(this.list);
    else if (event.key === "Escape" && this.marked.layers.size) this.marked.layers.clear();
    else if (event.key === "Enter") return this.edit();
    else if (isGroup && event.key === (isOpen ? "ArrowLeft" : "ArrowRight")) return this.fold(row);
    else return false;
    this.changed();
    return true;
  }

  private edit(): boolean {
    this.events.edit();
    return true;
  }

  private fold(row: Row): boolean {
    this.events.open(row.group);
    return true;
  }

  private changed(): void {
    this.refresh();
    this.events.mark(this.marked.layers.size ? (this.list[this.marked.active] ?? null) : null);
  }

  private scrollTo(at: number): void {
    const head = this.head.getBoundingClientRect().height || ROW_HEIGHT;
    const [top, bottom] = [at * ROW_HEIGHT, (at + 1) * ROW_HEIGHT + head];
    if (this.element.scrollTop > top) this.element.scrollTop = top;
    else if (this.element.scrollTop + this.element.clientHeight < bottom) {
      this.element.scrollTop = bottom - this.element.clientHeight;
    }
  }
}

/** What came into focus by key is brought into sight as a whole, which browsers do only where nothing of it is seen. */
function showWhole(button: HTMLElement): void {
  if (button.matches(":focus-visible")) button.scrollIntoView({ block: "nearest", inline: "nearest" });
}
