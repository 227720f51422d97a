/** The search of a pane: what was found, which of it can be seen, and the way from one to the next. */

import type { Bar } from "./bar";
import type { Hit } from "./search";
import type { Selection } from "./selection";
import type { Stage } from "./stage";

export class Finder {
  /** Ids of the boxes that were found, or that hold what was found. */
  visible: ReadonlySet<string> = new Set();
  private hits: Hit[] = [];
  private hit = -1;
  private ticket = 0;
  private finding = Promise.resolve();

  constructor(
    private readonly bar: Pick<Bar, "search" | "count">,
    private readonly stage: Stage,
    private readonly selection: Selection,
    private readonly marked: () => void,
  ) {}

  find(): Promise<void> {
    this.finding = this.search();
    return this.finding;
  }

  clear(): void {
    this.bar.search.value = "";
    void this.find();
  }

  /** Looks again which of the hits can be seen. */
  async update(): Promise<void> {
    const { engine } = this.stage.host;
    const ids = this.hits.map((hit) => hit.id);
    this.visible = new Set(ids.length ? await engine.visibleOf(this.stage.part, this.stage.shown, ids) : []);
    this.marked();
  }

  async next(step: number): Promise<void> {
    await this.finding; // Enter may be faster than the search
    const count = this.hits.length;
    if (!count) return;
    this.hit = this.hit < 0 && step < 0 ? count - 1 : (this.hit + step + count) % count;
    this.bar.count.textContent = `${this.hit + 1} of ${count}`;
    await this.selection.reveal(this.hits[this.hit]!.id);
    this.stage.canvas.makeReadable(this.stage.active);
  }

  key(event: KeyboardEvent): void {
    if (event.key === "Enter") void this.next(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") {
      this.clear();
      this.stage.canvas.element.focus({ preventScroll: true });
    } else return;
    event.preventDefault();
  }

  private async search(): Promise<void> {
    const ticket = ++this.ticket;
    const query = this.bar.search.value;
    const hits = query.trim() ? await this.stage.host.engine.search(this.stage.part, query) : [];
    if (ticket !== this.ticket) return;
    this.hits = hits;
    this.hit = -1;
    this.bar.count.textContent = query.trim() ? `${hits.length} found` : "";
    await this.update();
  }
}
