/** The area that shows a picture: zoom, panning, the small map, and keeping what was clicked in its place. */

import { make } from "./dom";
import type { Part, Picture, Rect } from "./picture";

const STEP = 1.25;
const MAP = { width: 148, height: 190 };
const ANIMATED = 150; // boxes; more would cost the page too much time
const POINTS = 96 / 72; // pixels
const READABLE = 9; // pixels that the smallest text has at least in a first view
const MAP_MARGIN = 14;
const MAP_COLUMN = 600; // pixels: in a wider frame the map gets a column of its own where boxes lie in its corner

export class Canvas {
  readonly element = make("div", { class: "pbd-canvas", tabindex: 0, role: "tree" });
  readonly map = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  readonly frame = make("div", { class: "pbd-frame" }, this.element, this.map);
  picture: Picture | null = null;
  zoom = 1;
  private mapWanted = true;
  private boxes = new Map<string, Rect>();
  private mapRequest = 0;
  private readonly mapView = svgRect("pbd-map-view", { x: 0, y: 0, width: 0, height: 0 });
  private readonly resized = new ResizeObserver(() => this.drawMap());

  constructor() {
    for (const [name, value] of Object.entries({
      class: "pbd-map",
      width: MAP.width,
      height: MAP.height,
      "aria-hidden": "true",
    }))
      this.map.setAttribute(name, String(value));
    this.element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.element.addEventListener("scroll", () => this.drawMap());
    this.drag();
    this.dragMap();
    this.resized.observe(this.element);
  }

  /** Shows a picture; the part `anchor` stays where it was on the screen, if it was there. */
  show(picture: Picture, anchor: string): void {
    const first = this.picture === null;
    const before = this.boxes;
    const held = anchor ? this.onScreen(anchor) : null;
    const scroll = { left: this.element.scrollLeft, top: this.element.scrollTop };
    this.picture = picture;
    this.element.replaceChildren(picture.svg);
    this.measure();
    this.fillMap();
    this.element.style.marginRight = "";
    this.resize();
    const now = anchor ? this.onScreen(anchor) : null;
    if (first) this.firstView();
    else if (held && now)
      this.element.scrollTo(this.element.scrollLeft + now.x - held.x, this.element.scrollTop + now.y - held.y);
    else this.element.scrollTo(scroll);
    this.animate(
      before,
      held !== null && now !== null ? { from: before.get(anchor), to: this.boxes.get(anchor) } : null,
    );
    this.drawMap();
  }

  /** Lets another part take the place of one that goes away with the next picture. */
  rename(id: string, other: string): void {
    const rect = this.boxes.get(id);
    const part = this.picture?.parts.get(id);
    if (rect && part) {
      this.boxes.set(other, rect);
      this.picture!.parts.set(other, part);
    }
  }

  clear(): void {
    this.picture = null;
    this.boxes = new Map();
    this.element.replaceChildren();
  }

  scale(zoom: number, at?: { x: number; y: number }): void {
    if (!this.picture) return;
    const view = this.element;
    const centre = at ?? { x: view.clientWidth / 2, y: view.clientHeight / 2 };
    const next = Math.min(4, Math.max(0.08, zoom));
    const factor = next / this.zoom;
    const [left, top] = [view.scrollLeft + centre.x, view.scrollTop + centre.y];
    this.zoom = next;
    this.resize();
    view.scrollTo(left * factor - centre.x, top * factor - centre.y);
    this.drawMap();
  }

  /** Fits the picture as far as its text stays readable, with the first failure or the input inside the view. */
  firstView(): void {
    if (!this.picture) return;
    const { width, height, parts } = this.picture;
    const fits = Math.min((this.element.clientWidth - 16) / width, (this.element.clientHeight - 16) / height);
    this.zoom = Math.max(this.readable(), Math.min(1, fits));
    this.resize();
    const boxes = [...parts.values()].filter((part) => part.box && part.box.kind !== "reference");
    const input = boxes.find((part) => part.box!.kind === "input") ?? boxes[0];
    const trouble =
      boxes.find((part) => part.status === "failed") ?? boxes.find((part) => part.status === "leaf") ?? input;
    if (!input || !trouble) return;
    this.element.scrollTo(0, 0);
    const at = this.toScreen(input.rect);
    this.element.scrollTo({ left: at.x + (at.width - this.element.clientWidth) / 2, top: at.y - 12 });
    this.bringIntoView(trouble.id, "auto");
    this.drawMap();
  }

  /** Zooms in until the smallest text can be read; the part stays in the view. */
  makeReadable(id: string): void {
    if (this.zoom < this.readable()) this.scale(this.readable());
    this.bringIntoView(id, "auto");
  }

  /** The zoom at which the smallest text of the picture can just be read. */
  private readable(): number {
    const sizes = [...this.picture!.svg.querySelectorAll("text")].map((text) => Number(text.getAttribute("font-size")));
    const smallest = Math.min(...sizes.filter((size) => size > 0));
    return Number.isFinite(smallest) ? Math.min(1, READABLE / (smallest * POINTS)) : 1;
  }

  zoomIn(): void {
    this.scale(this.zoom * STEP);
  }
  zoomOut(): void {
    this.scale(this.zoom / STEP);
  }

  fit(): void {
    if (!this.picture) return;
    this.scale(
      Math.min(
        1.5,
        (this.element.clientWidth - 16) / this.picture.width,
        (this.element.clientHeight - 16) / this.picture.height,
      ),
    );
  }

  /** Brings a part into view, in the middle if it was not visible. */
  bringIntoView(id: string, behavior: ScrollBehavior = calm() ? "auto" : "smooth"): void {
    const [view, rect] = [this.element, this.boxes.get(id)];
    if (!rect) return;
    const place = this.toScreen(rect);
    const visible =
      place.x >= 0 &&
      place.y >= 0 &&
      place.x + Math.min(place.width, view.clientWidth) <= view.clientWidth &&
      place.y + Math.min(place.height, view.clientHeight) <= view.clientHeight;
    if (visible) return;
    view.scrollTo({
      left: view.scrollLeft + place.x - Math.max(12, (view.clientWidth - place.width) / 2),
      top: view.scrollTop + place.y - Math.max(12, (view.clientHeight - place.height) / 2),
      behavior,
    });
  }

  /** Where a part lies in the picture, in the picture's units. */
  rect(id: string): Rect | undefined {
    return this.boxes.get(id);
  }

  dispose(): void {
    this.resized.disconnect();
  }

  toggleMap(): void {
    this.mapWanted = !this.mapWanted;
    this.drawMap();
  }

  private drawMap(): void {
    cancelAnimationFrame(this.mapRequest);
    this.mapRequest = requestAnimationFrame(() => this.drawMapNow());
  }

  private measure(): void {
    this.boxes = new Map();
    for (const part of this.picture!.parts.values()) this.boxes.set(part.id, part.rect);
  }

  private resize(): void {
    this.picture!.svg.setAttribute("width", `${this.picture!.width * this.zoom}`);
    this.picture!.svg.setAttribute("height", `${this.picture!.height * this.zoom}`);
  }

  private onScreen(id: string): Rect | null {
    const rect = this.boxes.get(id);
    return rect ? this.toScreen(rect) : null;
  }

  /** A rectangle of the picture in pixels from the corner of the visible area. */
  private toScreen(rect: Rect): Rect {
    const matrix = this.picture!.svg.querySelector("g")!.getScreenCTM();
    const view = this.element.getBoundingClientRect();
    if (!matrix) return { x: 0, y: 0, width: 0, height: 0 };
    return {
      x: matrix.a * rect.x + matrix.e - view.x,
      y: matrix.d * rect.y + matrix.f - view.y,
      width: rect.width * matrix.a,
      height: rect.height * matrix.d,
    };
  }

  /** Boxes slide from where they were; not for those who asked for less motion, nor in large pictures. */
  private animate(before: Map<string, Rect>, held: { from: Rect | undefined; to: Rect | undefined } | null): void {
    if (calm() || !before.size || this.boxes.size > ANIMATED) return;
    const shift = held?.from && held.to ? { x: held.to.x - held.from.x, y: held.to.y - held.from.y } : { x: 0, y: 0 };
    for (const [id, now] of this.boxes) {
      const [was, part] = [before.get(id), this.picture!.parts.get(id)];
      if (!part?.box) continue;
      if (!was) part.element.animate([{ opacity: 0 }, { opacity: 1 }], 160);
      else {
        const [dx, dy] = [was.x - now.x + shift.x, was.y - now.y + shift.y];
        if (Math.abs(dx) + Math.abs(dy) > 1)
          part.element.animate([{ transform: `translate(${dx}px, ${dy}px)` }, { transform: "none" }], {
            duration: 180,
            easing: "ease-out",
          });
      }
    }
    for (const edge of this.picture!.edges)
      edge.element.animate([{ opacity: 0 }, { opacity: 0, offset: 0.6 }, { opacity: 1 }], 220);
  }

  private wheel(event: WheelEvent): void {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const view = this.element.getBoundingClientRect();
      this.scale(this.zoom * Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0022)), {
        x: event.clientX - view.x,
        y: event.clientY - view.y,
      });
    } else if (!this.element.contains(document.activeElement)) {
      // a page that is scrolled past the diagram goes on scrolling: it has the wheel only once it was clicked
      event.preventDefault();
      scrollerOf(this.frame).scrollBy(event.deltaX, event.deltaMode ? event.deltaY * 16 : event.deltaY);
    }
  }

  private drag(): void {
    let start: { x: number; y: number; left: number; top: number } | null = null;
    this.element.addEventListener("pointerdown", (event) => {
      if (event.button === 0)
        start = { x: event.clientX, y: event.clientY, left: this.element.scrollLeft, top: this.element.scrollTop };
    });
    this.element.addEventListener("pointermove", (event) => {
      if (!start || !event.buttons) return;
      this.element.classList.add("pbd-dragged");
      this.element.scrollTo(start.left + start.x - event.clientX, start.top + start.y - event.clientY);
    });
    for (const end of ["pointerup", "pointerleave"]) {
      this.element.addEventListener(end, () => {
        start = null;
        this.element.classList.remove("pbd-dragged");
      });
    }
  }

  private dragMap(): void {
    const move = (event: PointerEvent): void => {
      if (!event.buttons || !this.picture) return;
      const scale = this.mapScale();
      const box = this.map.getBoundingClientRect();
      const factor = this.element.scrollWidth / Math.max(1, this.picture.width);
      this.element.scrollTo(
        ((event.clientX - box.x) / scale) * factor - this.element.clientWidth / 2,
        ((event.clientY - box.y) / scale) * factor - this.element.clientHeight / 2,
      );
    };
    this.map.addEventListener("pointerdown", (event) => {
      this.map.setPointerCapture(event.pointerId);
      move(event);
    });
    this.map.addEventListener("pointermove", move);
  }

  private mapScale(): number {
    return Math.min(MAP.width / this.picture!.width, MAP.height / this.picture!.height);
  }

  /** Whether the map covers no box: in its corner, else in a column of its own where the frame is wide enough. */
  private makeRoomForMap(): boolean {
    const view = this.element;
    if (view.style.marginRight) return true;
    const left = view.clientWidth - Number(this.map.getAttribute("width")) - MAP_MARGIN;
    const top = view.clientHeight - Number(this.map.getAttribute("height")) - MAP_MARGIN;
    const covered = [...this.picture!.parts.values()].some((part) => {
      if (!part.box) return false;
      const at = this.toScreen(part.rect);
      return at.x < view.clientWidth && at.y < view.clientHeight && at.x + at.width > left && at.y + at.height > top;
    });
    if (!covered) return true;
    if (this.frame.clientWidth < MAP_COLUMN) return false;
    view.style.marginRight = `${Number(this.map.getAttribute("width")) + 2 * MAP_MARGIN}px`;
    return true;
  }

  /** The boxes of the small map; made once for each picture. */
  private fillMap(): void {
    const group = this.picture!.svg.querySelector("g");
    const [, dx = "0", dy = "0"] =
      /translate\(([-\d.]+)[ ,]+([-\d.]+)\)/.exec(group?.getAttribute("transform") ?? "") ?? [];
    const scale = this.mapScale() * POINTS;
    this.map.setAttribute("width", String(Math.ceil(this.picture!.width * this.mapScale())));
    this.map.setAttribute("height", String(Math.ceil(this.picture!.height * this.mapScale())));
    const rects = [...this.boxes].map(([id, rect]) => {
      const part = this.picture!.parts.get(id)!;
      const x = (rect.x + Number(dx)) * scale;
      const y = (rect.y + Number(dy)) * scale;
      return svgRect(part.box ? `pbd-map-box pbd-map-${part.status}` : "pbd-map-cluster", {
        x,
        y,
        width: Math.max(1, rect.width * scale),
        height: Math.max(1, rect.height * scale),
      });
    });
    this.map.replaceChildren(...rects, this.mapView);
  }

  private drawMapNow(): void {
    const view = this.element;
    const large =
      this.picture !== null &&
      (view.scrollWidth > view.clientWidth * 1.1 || view.scrollHeight > view.clientHeight * 1.1);
    const shown = large && this.mapWanted && this.makeRoomForMap();
    this.map.style.display = shown ? "" : "none";
    if (!shown || !this.picture) return;
    const ratio = this.mapScale() / this.zoom;
    const svg = this.picture.svg.getBoundingClientRect();
    const box = view.getBoundingClientRect();
    const clamp = (at: number, most: number): number => Math.min(Math.max(at, 1), most - 1);
    const [right, bottom] = [this.picture.width * this.mapScale(), this.picture.height * this.mapScale()];
    const [x, y] = [clamp((box.x - svg.x) * ratio, right), clamp((box.y - svg.y) * ratio, bottom)];
    const [x2, y2] = [
      clamp((box.x - svg.x + view.clientWidth) * ratio, right),
      clamp((box.y - svg.y + view.clientHeight) * ratio, bottom),
    ];
    place(this.mapView, { x, y, width: x2 - x, height: y2 - y });
  }
}

function svgRect(kind: string, rect: Rect): SVGRectElement {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  made.setAttribute("class", kind);
  place(made, rect);
  return made;
}

function place(element: SVGRectElement, rect: Rect): void {
  for (const [name, value] of Object.entries(rect)) element.setAttribute(name, value.toFixed(1));
}

/** Whether the person asked for less motion. */
export function calm(): boolean {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

function scrollerOf(element: HTMLElement): Element {
  for (let at = element.parentElement; at; at = at.parentElement) {
    const { overflowY } = getComputedStyle(at);
    if ((overflowY === "auto" || overflowY === "scroll") && at.scrollHeight > at.clientHeight) return at;
  }
  return document.scrollingElement ?? document.documentElement;
}

/** The part nearest to another one in a direction, for arrow keys. */
export function nearest(
  parts: Iterable<Part>,
  rects: (id: string) => Rect | undefined,
  from: string,
  direction: "left" | "right" | "up" | "down",
): string | null {
  const at = rects(from);
  if (!at) return null;
  const centre = (r: Rect): [number, number] => [r.x + r.width / 2, r.y + r.height / 2];
  const [x, y] = centre(at);
  let best: string | null = null;
  let least = Infinity;
  for (const part of parts) {
    const rect = rects(part.id);
    if (!part.box || part.box.kind === "reference" || part.id === from || !rect) continue;
    const [px, py] = centre(rect);
    const [along, across] = {
      left: [x - px, y - py],
      right: [px - x, y - py],
      up: [y - py, x - px],
      down: [py - y, x - px],
    }[direction] as [number, number];
    if (along <= 2) continue;
    const cost = along + 2.5 * Math.abs(across);
    if (cost < least) [least, best] = [cost, part.id];
  }
  return best;
}
