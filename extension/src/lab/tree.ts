import type { TreeRow } from "../render";
import type { Item } from "./rows";
import { hierarchy, indexOf, matching, openAtFirst, openWay, visible } from "./rows";
import { element } from "./widgets";

const ROW_HEIGHT = 24;
const SPARE_ROWS = 8;
const GLYPHS: Readonly<Record<string, string>> = { traced: "●", failed: "✕", leaf: "▣", unvisited: "∅" };
const WORDS: Readonly<Record<string, string>> = { leaf: "kept in PyTorch", unvisited: "not reached" };

/** The modules of one document. */
export class TreeState {
  constructor(rows: readonly TreeRow[]) {
    this.items = hierarchy(rows);
    this.open = openAtFirst(this.items);
    for (const [index, { row }] of this.items.entries()) this.byName.set(row.fqn, index);
  }

  readonly items: Item[];
  readonly open: Set<number>;
  readonly byName = new Map<string, number>();
  active = 0;
  scrolled = 0;
}

/** A tree of modules in which only the rows in sight are elements; one stop of the Tab key. */
export class ModuleTree {
  constructor(private readonly reveal: (fqn: string) => void) {
    this.element.setAttribute("role", "tree");
    this.element.setAttribute("aria-label", "Modules");
    this.element.tabIndex = 0;
    this.rows.setAttribute("role", "presentation");
    this.element.append(this.rows);
    this.element.addEventListener("scroll", () => this.draw());
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("click", (event) => this.click(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  readonly element = element("div", "pbl-tree");

  /** Shows a document's modules as they were left. */
  show(state: TreeState, query: string): void {
    if (this.state !== state) {
      this.state = state;
      this.selected = new Set();
    }
    this.kept = matching(state.items, query);
    this.arrange();
    this.element.scrollTop = state.scrolled;
    this.draw();
  }

  /** Marks the modules of what is selected and brings the first into sight. */
  select(fqns: readonly string[]): void {
    const { byName, items, open } = this.state;
    this.selected = new Set(fqns.map((fqn) => indexOf(byName, fqn)).filter((index) => index >= 0));
    const [first] = this.selected;
    if (first !== undefined) {
      openWay(items, first, open);
      this.arrange();
      this.activate(first);
    } else {
      this.draw();
    }
  }

  private arrange(): void {
    this.shown = visible(this.state.items, this.state.open, this.kept);
    this.rows.style.height = `${this.shown.length * ROW_HEIGHT}px`;
    if (!this.shown.includes(this.state.active)) this.state.active = this.shown[0] ?? 0;
  }

  private draw(): void {
    const { clientHeight, scrollTop } = this.element;
    this.state.scrolled = scrollTop;
    const from = Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - SPARE_ROWS);
    const to = Math.ceil((scrollTop + clientHeight) / ROW_HEIGHT) + SPARE_ROWS;
    const drawn = this.shown.slice(from, to).map((index, place) => this.rowOf(index, from + place));
    this.rows.replaceChildren(...drawn.filter((row) => row !== null));
    const active = this.rows.querySelector(".pbl-active");
    if (active) this.element.setAttribute("aria-activedescendant", active.id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  private rowOf(index: number, place: number): HTMLElement | null {
    const { items, open, active } = this.state;
    const item = items[index];
    if (!item) return null;
    const { row } = item;
    const made = element("div", `pbl-row pbl-${row.status in GLYPHS ? row.status : "other"}`);
    const isOpen = this.kept === null ? open.has(index) : (this.shown[place + 1] ?? -1) < item.end;
    made.id = `pbl-module-${index}`;
    made.dataset["index"] = String(index);
    made.style.top = `${place * ROW_HEIGHT}px`;
    made.style.paddingInlineStart = `${row.depth * 12 + 2}px`;
    made.classList.toggle("pbl-active", index === active);
    made.title = row.reason ? `${row.fqn || row.type}: ${row.reason}` : `${row.fqn || row.type}`;
    made.setAttribute("role", "treeitem");
    made.setAttribute("aria-level", String(row.depth + 1));
    made.setAttribute("aria-posinset", String(item.position));
    made.setAttribute("aria-setsize", String(items[item.parent]?.children ?? 1));
    made.setAttribute("aria-selected", String(this.selected.has(index)));
    made.setAttribute("aria-label", spoken(item));
    if (item.children > 0) made.setAttribute("aria-expanded", String(isOpen));
    made.append(
      element("span", "pbl-twisty", item.children === 0 ? "" : isOpen ? "▾" : "▸"),
      element("span", "pbl-glyph", GLYPHS[row.status] ?? "·"),
      element("span", "pbl-name", item.name || row.type),
      element("span", "pbl-type", item.name ? row.type : ""),
    );
    if (row.failed > 0) made.append(element("span", "pbl-count", `✕ ${row.failed}`));
    return made;
  }

  private click(event: MouseEvent): void {
    const target = event.target instanceof Element ? event.target : null;
    const index = Number(target?.closest<HTMLElement>("[data-index]")?.dataset["index"] ?? -1);
    const item = this.state.items[index];
    if (!item) return;
    if (target?.closest(".pbl-twisty") && item.children > 0) this.toggle(index);
    else this.choose(index);
  }

  private choose(index: number): void {
    this.selected = new Set([index]);
    this.activate(index);
    const fqn = this.state.items[index]?.row.fqn;
    if (fqn !== undefined) this.reveal(fqn);
  }

  private toggle(index: number, open = !this.state.open.has(index)): void {
    if (open) this.state.open.add(index);
    else this.state.open.delete(index);
    this.arrange();
    this.activate(index);
  }

  private activate(index: number): void {
    this.state.active = index;
    const top = this.shown.indexOf(index) * ROW_HEIGHT;
    const { scrollTop, clientHeight } = this.element;
    if (top >= 0 && top < scrollTop) this.element.scrollTop = top;
    else if (top + ROW_HEIGHT > scrollTop + clientHeight) this.element.scrollTop = top + ROW_HEIGHT - clientHeight;
    this.draw();
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.act(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Does what a key means; false if it means nothing here. */
  private act(key: string): boolean {
    const index = this.state.active;
    const item = this.state.items[index];
    const place = this.shown.indexOf(index);
    if (!item || place < 0) return false;
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW_HEIGHT) - 1);
    const isOpen = this.kept !== null || this.state.open.has(index);
    const moves: Readonly<Record<string, number>> = {
      ArrowDown: place + 1,
      ArrowUp: place - 1,
      PageDown: place + page,
      PageUp: place - page,
      Home: 0,
      End: this.shown.length - 1,
    };
    const move = moves[key];
    if (move !== undefined) this.activate(this.shown[Math.min(Math.max(move, 0), this.shown.length - 1)] ?? index);
    else if (key === "Enter" || key === " ") this.choose(index);
    else if (key === "ArrowRight" && item.children > 0) {
      if (isOpen) this.activate(this.shown[place + 1] ?? index);
      else this.toggle(index, true);
    } else if (key === "ArrowLeft") {
      if (isOpen && item.children > 0 && this.kept === null) this.toggle(index, false);
      else if (item.parent >= 0) this.activate(item.parent);
    } else return key === "ArrowRight";
    return true;
  }

  private readonly rows = element("div", "pbl-rows");
  private state = new TreeState([]);
  private kept: Set<number> | null = null;
  private shown: number[] = [];
  private selected = new Set<number>();
}

function spoken({ row, name }: Item): string {
  const failed = row.failed > 0 ? `${row.failed} failed below` : "";
  const reason = row.reason ? `${WORDS[row.status] ?? row.status}: ${row.reason}` : (WORDS[row.status] ?? row.status);
  return [name || "model", row.type, reason, failed].filter(Boolean).join(", ");
}
