/**
 * The bench in the whole window: the one view, not a second. It stays where it is in the page and goes to the browser's
 * top layer, so that nothing around it cuts it off, and what is open, typed and scrolled in it stays.
 */

import { make } from "../render/dom";
import { svg } from "../render/svg_parts";
import type { Cleanups } from "./live";

const FULL = "pbb-full";

export class FullWindow {
  readonly button: HTMLButtonElement;
  private box: HTMLElement | null = null;
  private readonly hole = make("div", { class: "pbb-hole", "aria-hidden": "true" });
  private scrolled: [element: Element, top: number, left: number][] = [];

  constructor(ends: Cleanups) {
    this.button = make("button", { class: "pbb-icon pbb-whole", click: () => this.turn() });
    this.draw();
    // where nothing has the focus, and from the parts that are not ours
    const key = (event: KeyboardEvent): void => this.escape(event);
    document.addEventListener("keydown", key);
    ends.push(() => {
      document.removeEventListener("keydown", key);
      if (this.isFull) this.turn();
    });
  }

  /** Goes back at Escape, unless it has meant something where it was pressed. */
  escape(event: KeyboardEvent): void {
    if (event.key !== "Escape" || event.defaultPrevented || !this.isFull) return;
    if (event.target !== document.body && !this.box?.contains(event.target as Node)) return;
    event.preventDefault();
    this.turn();
  }

  join(box: HTMLElement): void {
    this.box = box;
  }

  private get isFull(): boolean {
    return this.box?.classList.contains(FULL) ?? false;
  }

  private turn(): void {
    const { box } = this;
    if (!box) return;
    if (this.isFull) this.back(box);
    else this.fill(box);
    this.draw();
    this.button.focus({ preventScroll: true });
    window.dispatchEvent(new Event("resize")); // charts take their new width
  }

  private fill(box: HTMLElement): void {
    this.scrolled = scrolledAround(box);
    this.hole.style.height = `${box.offsetHeight}px`; // what lies below must not move up
    box.before(this.hole);
    box.classList.add(FULL);
    if (!("showPopover" in box)) return;
    box.setAttribute("popover", "manual");
    box.showPopover();
  }

  private back(box: HTMLElement): void {
    if (box.hasAttribute("popover")) {
      box.hidePopover();
      box.removeAttribute("popover");
    }
    box.classList.remove(FULL);
    this.hole.remove();
    for (const [element, top, left] of this.scrolled) element.scrollTo({ top, left, behavior: "instant" });
    this.scrolled = [];
  }

  private draw(): void {
    const title = this.isFull ? "Back into the page (Escape)" : "Fill the window";
    this.button.title = title;
    this.button.setAttribute("aria-label", title);
    this.button.setAttribute("aria-pressed", String(this.isFull));
    this.button.replaceChildren(corners(this.isFull));
  }
}

/** Four corners, outwards or inwards; drawn, as many fonts lack the character. */
function corners(isFull: boolean): SVGElement {
  const inwards = "M6 2v4H2M10 2v4h4M6 14v-4H2M10 14v-4h4";
  const outwards = "M2 6V2h4M14 6V2h-4M2 10v4h4M14 10v4h-4";
  const icon = svg("svg", { width: 14, height: 14, viewBox: "0 0 16 16", "aria-hidden": "true" });
  const style = "fill:none;stroke:currentColor;stroke-width:1.6";
  icon.append(svg("path", { d: isFull ? inwards : outwards, style }));
  return icon;
}

function scrolledAround(box: HTMLElement): [Element, number, number][] {
  const found: [Element, number, number][] = [];
  for (let at = box.parentElement; at; at = at.parentElement) found.push([at, at.scrollTop, at.scrollLeft]);
  return found;
}
