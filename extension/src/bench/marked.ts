/** Which rows of the table are chosen, as in a list of files: click, shift, ctrl. */

import type { Row } from "./rows";

export class Marked {
  readonly layers = new Set<number>();
  /** The row from which shift reaches, and the one with the focus. */
  anchor = 0;
  active = 0;

  has(row: Row): "all" | "some" | "none" {
    let count = 0;
    for (const layer of row.members) count += Number(this.layers.has(layer));
    return count === 0 ? "none" : count === row.members.length ? "all" : "some";
  }

  only(rows: readonly Row[], at: number): void {
    this.layers.clear();
    this.add(rows[at]);
    this.anchor = this.active = at;
  }

  toggle(rows: readonly Row[], at: number): void {
    const row = rows[at];
    if (!row) return;
    if (this.has(row) === "all") for (const layer of row.members) this.layers.delete(layer);
    else this.add(row);
    this.anchor = this.active = at;
  }

  /** All rows between the anchor and this one, and no others. */
  reach(rows: readonly Row[], at: number): void {
    this.layers.clear();
    for (let row = Math.min(this.anchor, at); row <= Math.max(this.anchor, at); row++) this.add(rows[row]);
    this.active = at;
  }

  all(rows: readonly Row[]): void {
    this.layers.clear();
    for (const row of rows) this.add(row);
  }

  private add(row: Row | undefined): void {
    for (const layer of row?.members ?? []) this.layers.add(layer);
  }
}
