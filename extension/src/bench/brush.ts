/** Linked brushing: a range of a chart's rows, dragged over or reached with shift, selects their layers everywhere. */

/** The event that tells of a brushed range; its detail are the names of the layers. */
export const BRUSHED = "prepbench:brushed";

type Row = HTMLElement | SVGElement;
const CHART = "ol, svg";

/** The names between two rows of one chart, in its order, whichever was first; none where one is not there. */
export function namesBetween(names: readonly string[], first: string, last: string): string[] {
  const [from, to] = [names.indexOf(first), names.indexOf(last)];
  return from < 0 || to < 0 ? [] : names.slice(Math.min(from, to), Math.max(from, to) + 1);
}

/** Lets ranges of rows be brushed in each list or picture of `place`; a row is an element with `data-fqn`. */
export function brushRows(place: HTMLElement): void {
  let began: Row | null = null;
  const rowAt = (target: EventTarget | null): Row | null =>
    target instanceof Element ? target.closest<Row>("[data-fqn]") : null;
  const brush = (first: Row, last: Row): boolean => {
    const list = first.closest(CHART);
    if (!list || list !== last.closest(CHART)) return false;
    const names = [...list.querySelectorAll<Row>("[data-fqn]")].map(nameOf);
    const detail = namesBetween(names, nameOf(first), nameOf(last));
    for (const row of place.querySelectorAll<Row>("[data-fqn]")) {
      const isIn = detail.includes(nameOf(row));
      if (row instanceof SVGElement) row.classList.toggle("brushed", isIn);
      else row.setAttribute("aria-pressed", String(isIn));
    }
    place.dispatchEvent(new CustomEvent(BRUSHED, { detail, bubbles: true }));
    return true;
  };
  place.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && !event.shiftKey) began = rowAt(event.target);
  });
  place.addEventListener("pointerup", (event) => {
    const ended = rowAt(document.elementFromPoint(event.clientX, event.clientY));
    if (began && ended && began !== ended) brush(began, ended);
    else if (ended && !event.shiftKey) began = ended;
  });
  place.addEventListener(
    "click",
    (event) => {
      const row = rowAt(event.target);
      if (!event.shiftKey || !row) return;
      const first = began?.isConnected ? began : place.querySelector<Row>("[data-fqn][aria-pressed='true']");
      if (first && brush(first, row)) event.stopPropagation();
    },
    { capture: true },
  );
}

function nameOf(row: Row): string {
  return row.dataset["fqn"] ?? "";
}
