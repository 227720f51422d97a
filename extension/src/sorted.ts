/** Long tables of a page, sorted by a click on a heading. */

const LONG = 8;

/** Gives the headings of long tables buttons; a second click turns the order round, and empty cells stay last. */
export function makeSortable(table: HTMLTableElement): void {
  const body = table.tBodies[0];
  const heads = table.tHead?.rows[0];
  if (!body || !heads || body.rows.length < LONG) return;
  [...heads.cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "pb-sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falls = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      body.append(...ordered([...body.rows], column, falls));
    });
  });
}

function ordered(rows: HTMLTableRowElement[], column: number, falls: boolean): HTMLTableRowElement[] {
  const text = (row: HTMLTableRowElement): string => row.cells[column]?.textContent?.trim() ?? "";
  const filled = rows.filter((row) => text(row) !== "");
  const isNumeric = filled.every((row) => NUMBER.test(text(row)));
  const compare = (one: HTMLTableRowElement, other: HTMLTableRowElement): number =>
    isNumeric ? number(text(one)) - number(text(other)) : text(one).localeCompare(text(other));
  const sorted = filled.sort((one, other) => (falls ? -1 : 1) * compare(one, other));
  return [...sorted, ...rows.filter((row) => !filled.includes(row))];
}

/** A number with a unit or without, such as "0.97x"; a date is none. */
const NUMBER = /^[-+−]?[\d.,]+\s?[\p{L}%]*$/u;

function number(text: string): number {
  return Number.parseFloat(text.replaceAll(",", "").replace("−", "-"));
}
