/**
 * How the parts lie: Python puts the controls, the diagram, the chart and the code into one box; here the box becomes
 * wide or narrow, the border between diagram and step moves, and the diagram folds to a strip.
 */

import { make } from "../render/dom";
import { followCharts } from "./chart";

const WIDE = 960; // pixels of the bench's own width
const BROAD = 1300; // from which the chart of results stands beside their table, in the diagram's column
const [LEAST, MOST, STEP, FIRST] = [25, 70, 2, 45]; // percent of the width that the diagram has
const ROOM = 702; // pixels of the step and the border, so that the table shows what layers cost
const KEPT = "prepbench:split";

export class Place {
  readonly splitter: HTMLElement;
  readonly strip: HTMLButtonElement;
  private box: HTMLElement | null = null;
  private share = FIRST;
  private below: readonly HTMLElement[] = [];
  private isOwn = false; // chosen by the person, here or earlier
  private folded = true;
  private stop: (() => void) | null = null;
  private step = "";
  private readonly observer = new ResizeObserver(() => this.measure());

  /** `chosen` hears of a click on a point of the chart, by the id of its run; `joined` gets the box once it is known. */
  constructor(
    private readonly root: HTMLElement,
    private readonly chosen: (id: string) => void,
    private readonly joined: (box: HTMLElement) => void,
  ) {
    this.splitter = make("div", {
      class: "pbb-splitter",
      role: "separator",
      tabindex: "0",
      "aria-orientation": "vertical",
      "aria-label": "Width of the diagram",
      "aria-valuemin": LEAST,
      "aria-valuemax": MOST,
      title: "Drag, or use the arrow keys",
      keydown: (event: KeyboardEvent) => this.key(event),
      pointerdown: (event: PointerEvent) => this.grab(event),
    });
    this.strip = make("button", { class: "pbb-strip", click: () => this.fold(!this.folded) });
    const share = kept();
    if (share !== null) [this.share, this.isOwn] = [share, true];
    this.observer.observe(root.firstElementChild ?? root);
    this.draw();
  }

  /** Tells the box which step is shown: the chart belongs to the results. */
  showStep(name: string): void {
    this.step = name;
    this.draw();
  }

  /** An element of another part in the same box. */
  find<E extends Element>(selector: string): E | null {
    return this.box?.querySelector<E>(selector) ?? null;
  }

  dispose(): void {
    this.observer.disconnect();
    this.stop?.();
  }

  /** Runs once there is a place in the page, and whenever its width or what lies below the diagram changes. */
  private measure(): void {
    if (!this.box) this.join();
    const width = (this.box ?? this.root).clientWidth;
    if (!width) return;
    const below = this.below.reduce((sum, { offsetHeight }) => sum + offsetHeight, 0);
    this.box?.style.setProperty("--pbb-below", `${below}px`);
    if (!this.isOwn) this.share = Math.max(LEAST, Math.min(FIRST, Math.floor((100 * (width - ROOM)) / width)));
    this.draw();
    for (const element of [this.box, this.root]) {
      element?.classList.toggle("pbb-wide", width >= WIDE && this.hasPicture());
      element?.classList.toggle("pbb-broad", width >= BROAD && this.hasPicture());
      element?.classList.toggle("pbb-small", width < 560);
    }
  }

  private join(): void {
    this.box = this.root.closest<HTMLElement>(".pbb-box");
    if (!this.box) return;
    let between = this.root.parentElement;
    for (; between && between !== this.box; between = between.parentElement) between.classList.add("pbb-through");
    this.root.classList.add("pbb-through");
    const chart = this.find<HTMLElement>(".pbb-chart");
    if (chart) this.stop = followCharts(chart, this.chosen);
    this.below = [...this.box.querySelectorAll<HTMLElement>(".pbb-foot, .pbb-codes")];
    for (const part of this.below) this.observer.observe(part);
    this.joined(this.box);
    this.draw();
  }

  private hasPicture(): boolean {
    return this.find(".pbb-picture") !== null;
  }

  private fold(folded: boolean): void {
    this.folded = folded;
    this.draw();
  }

  private draw(): void {
    this.splitter.setAttribute("aria-valuenow", String(Math.round(this.share)));
    this.strip.setAttribute("aria-expanded", String(!this.folded));
    this.strip.textContent = this.folded ? "▸ Diagram" : "▾ Diagram";
    this.strip.hidden = !this.hasPicture();
    if (!this.box) return;
    this.box.style.setProperty("--pbb-share", `${this.share}%`);
    this.box.classList.toggle("pbb-folded", this.folded);
    this.box.classList.toggle("pbb-at-results", this.step === "results");
  }

  private moveTo(share: number): void {
    this.share = Math.min(MOST, Math.max(LEAST, share));
    this.isOwn = true;
    keep(this.share);
    this.draw();
  }

  private key(event: KeyboardEvent): void {
    const to = { ArrowLeft: this.share - STEP, ArrowRight: this.share + STEP, Home: LEAST, End: MOST }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.moveTo(to);
  }

  private grab(event: PointerEvent): void {
    const box = this.box;
    if (!box || event.button !== 0) return;
    event.preventDefault();
    this.splitter.setPointerCapture(event.pointerId);
    const move = ({ clientX }: PointerEvent): void => {
      const { left, width } = box.getBoundingClientRect();
      this.moveTo((100 * (clientX - left)) / width);
    };
    const drop = (): void => {
      this.splitter.removeEventListener("pointermove", move);
      window.dispatchEvent(new Event("resize")); // charts take their new width
    };
    this.splitter.addEventListener("pointermove", move);
    this.splitter.addEventListener("lostpointercapture", drop, { once: true });
  }
}

function kept(): number | null {
  try {
    const share = Number(localStorage.getItem(KEPT));
    return share >= LEAST && share <= MOST ? share : null;
  } catch {
    return null; // pages without storage, such as sandboxed frames
  }
}

function keep(share: number): void {
  try {
    localStorage.setItem(KEPT, String(share));
  } catch {
    // it lasts as long as the page, then
  }
}
