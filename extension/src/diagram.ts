/**
 * The live diagram: a picture laid out in Python, with selection, search, zoom and opening of modules here.
 *
 * The SVG is parsed as XML and only known drawing elements are kept; text from users' models never becomes markup.
 */

interface Details { title: string; rows: [string, string][]; code: string; remedy: string; fqn: string; can_toggle: boolean; open: boolean; }
interface Legend { status: string; glyph: string; word: string; count: number; }

interface State { svg: string; title: string; selected: string; details: Details | Record<string, never>; legend: Legend[]; hint: string; }

interface Model {
  get<K extends keyof State>(name: K): State[K];
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
  send(content: Record<string, unknown>): void;
}

type Attributes = Record<string, string | boolean | ((event: Event) => void)>;

function make(tag: string, attributes: Attributes = {}, ...children: (Node | string)[]): HTMLElement {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const DRAWING = new Set(["svg", "g", "path", "polygon", "polyline", "ellipse", "text", "title", "style", "rect"]);

/** Parse SVG text and drop every element and attribute that could do something. */
function parse(text: string): SVGSVGElement | null {
  const root = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  if (root.nodeName !== "svg") return null;
  for (const element of [...root.querySelectorAll("*")]) {
    if (!DRAWING.has(element.nodeName)) { element.remove(); continue; }
    for (const attribute of [...element.attributes]) {
      if (/^on/i.test(attribute.name) || /href$/i.test(attribute.name)) element.removeAttribute(attribute.name);
    }
  }
  return document.importNode(root, true) as unknown as SVGSVGElement;
}

class Diagram {
  private readonly canvas = make("div", { class: "pbd-canvas", tabindex: "0", role: "application" });
  private readonly side = make("aside", { class: "pbd-details", "aria-live": "polite" });
  private readonly legend = make("div", { class: "pbd-legend", role: "group", "aria-label": "legend and filter" });
  private readonly count = make("span", { class: "pbd-dim", "aria-live": "polite" });
  private readonly search: HTMLInputElement;
  private svg: SVGSVGElement | null = null;
  private zoom = 1;
  private natural = { width: 0, height: 0 };
  private hits: SVGGElement[] = [];
  private hit = -1;
  private readonly dimmed = new Set<string>();

  constructor(private readonly model: Model, el: HTMLElement) {
    this.search = make("input", { type: "search", placeholder: "Find a layer  ( / )", "aria-label": "find a layer", input: () => this.find(), keydown: (e) => this.searchKey(e as KeyboardEvent) }) as HTMLInputElement;
    const button = (label: string, sign: string, click: () => void): HTMLElement => make("button", { type: "button", title: label, "aria-label": label, click }, sign);
    const bar = make("div", { class: "pbd-bar" }, make("strong", {}, model.get("title")), this.search, this.count, make("span", { class: "pbd-grow" }),
      button("Zoom in", "+", () => this.scale(this.zoom * 1.25)), button("Zoom out", "−", () => this.scale(this.zoom / 1.25)), button("Fit", "⤢", () => this.fit()),
      button("Open one more level", "⊞", () => model.send({ action: "open_level" })), button("First view", "⟲", () => model.send({ action: "reset" })));
    const root = make("div", { class: "pbd" }, bar, make("div", { class: "pbd-body" }, this.canvas, this.side), this.legend);
    root.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("click", (event) => this.click(event, false));
    this.canvas.addEventListener("dblclick", (event) => this.click(event, true));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.drag();
    el.append(root);
    this.showSvg();
    this.showDetails();
    this.showLegend();
  }

  showSvg(): void {
    const { scrollLeft, scrollTop } = this.canvas;
    const first = this.svg === null;
    this.svg = parse(this.model.get("svg"));
    if (this.svg === null) { this.canvas.replaceChildren(make("p", { class: "pbd-dim" }, this.model.get("hint"))); return; }
    this.natural = { width: parseFloat(this.svg.getAttribute("width") ?? "0") * 96 / 72, height: parseFloat(this.svg.getAttribute("height") ?? "0") * 96 / 72 };
    for (const node of this.nodes()) node.setAttribute("tabindex", "-1");
    this.canvas.setAttribute("aria-label", this.svg.getAttribute("aria-label") ?? "diagram");
    this.canvas.replaceChildren(this.svg);
    this.scale(this.zoom);
    if (first) requestAnimationFrame(() => this.centre()); else this.canvas.scrollTo(scrollLeft, scrollTop);
    this.mark();
    this.filter();
    this.find();
  }

  showDetails(): void {
    const details = this.model.get("details") as Details;
    this.mark();
    if (!details.title) { this.side.replaceChildren(make("p", { class: "pbd-dim" }, "Click a box for details; double-click opens or closes a module.")); return; }
    const list = make("dl");
    for (const [name, value] of details.rows) list.append(make("dt", {}, name), make("dd", {}, value));
    const parts: (Node | string)[] = [make("h4", {}, details.title), list];
    if (details.code) parts.push(make("pre", {}, details.code));
    if (details.remedy) parts.push(make("p", { class: "pbd-remedy" }, make("b", {}, "What to do: "), details.remedy));
    if (details.can_toggle) parts.push(make("button", { type: "button", click: () => this.model.send({ action: "toggle", id: `module:${details.fqn}` }) }, details.open ? "Close module" : "Open module"));
    this.side.replaceChildren(...parts);
  }

  showLegend(): void {
    this.legend.replaceChildren(...this.model.get("legend").map((entry) => {
      const button = make("button", { type: "button", "aria-pressed": String(!this.dimmed.has(entry.status)), class: `pbd-${entry.status}`, title: `Show or dim ${entry.word}`, click: () => {
        if (!this.dimmed.delete(entry.status)) this.dimmed.add(entry.status);
        this.showLegend();
        this.filter();
      } }, make("b", {}, entry.glyph), ` ${entry.count} ${entry.word}`);
      return button;
    }));
  }

  private nodes(): SVGGElement[] {
    return this.svg ? [...this.svg.querySelectorAll<SVGGElement>("g.node, g.cluster")] : [];
  }

  private mark(): void {
    const selected = this.model.get("selected");
    for (const node of this.nodes()) node.classList.toggle("pbd-selected", selected !== "" && node.id === selected);
  }

  private filter(): void {
    for (const node of this.nodes()) if (node.classList.contains("node")) node.classList.toggle("pbd-faded", [...this.dimmed].some((status) => node.classList.contains(status)));
  }

  private click(event: Event, twice: boolean): void {
    const node = (event.target as Element).closest<SVGGElement>("g.node, g.cluster");
    if (node) this.choose(node, twice);
  }

  private choose(node: SVGGElement, twice: boolean): void {
    this.model.send({ action: twice ? "toggle" : "select", id: node.id });
  }

  private find(): void {
    const needle = this.search.value.trim().toLowerCase();
    this.hits = needle ? this.nodes().filter((node) => `${node.id} ${node.getAttribute("aria-label") ?? ""}`.toLowerCase().includes(needle)) : [];
    for (const node of this.nodes()) node.classList.toggle("pbd-hit", this.hits.includes(node));
    this.hit = -1;
    this.count.textContent = needle ? `${this.hits.length} found` : "";
  }

  private searchKey(event: KeyboardEvent): void {
    if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { this.search.value = ""; this.find(); this.canvas.focus(); }
  }

  private next(step: number): void {
    if (!this.hits.length) return;
    this.hit = (this.hit + step + this.hits.length) % this.hits.length;
    const node = this.hits[this.hit]!;
    node.scrollIntoView({ block: "center", inline: "center" });
    this.count.textContent = `${this.hit + 1} of ${this.hits.length}`;
    this.choose(node, false);
  }

  private key(event: KeyboardEvent): void {
    event.stopPropagation(); // Lab's shortcuts must not run while the diagram has the focus
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLButtonElement) return;
    const boxes = this.nodes().filter((node) => node.classList.contains("node"));
    const at = boxes.findIndex((node) => node.id === this.model.get("selected"));
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    if (step !== undefined && boxes.length) {
      const node = boxes[at < 0 ? 0 : (at + step + boxes.length) % boxes.length]!;
      node.scrollIntoView({ block: "nearest", inline: "nearest" });
      this.choose(node, false);
    } else if (event.key === "Enter" && this.model.get("selected")) this.model.send({ action: "toggle", id: this.model.get("selected") });
    else if (event.key === "/") this.search.focus();
    else if (event.key === "+" || event.key === "=") this.scale(this.zoom * 1.25);
    else if (event.key === "-") this.scale(this.zoom / 1.25);
    else if (event.key === "0") this.fit();
    else if (event.key === "Escape") this.model.send({ action: "select", id: "" });
    else return;
    event.preventDefault();
  }

  private wheel(event: WheelEvent): void {
    if (!event.ctrlKey && !event.metaKey) return; // plain scrolling belongs to the notebook
    event.preventDefault();
    this.scale(this.zoom * (event.deltaY < 0 ? 1.1 : 1 / 1.1));
  }

  private scale(zoom: number): void {
    this.zoom = Math.min(4, Math.max(0.1, zoom));
    this.svg?.setAttribute("width", `${this.natural.width * this.zoom}px`);
    this.svg?.setAttribute("height", `${this.natural.height * this.zoom}px`);
  }

  private fit(): void {
    this.scale(Math.min(1.2, this.canvas.clientWidth / this.natural.width, this.canvas.clientHeight / this.natural.height));
  }

  private centre(): void {
    this.canvas.scrollLeft = Math.max(0, (this.canvas.scrollWidth - this.canvas.clientWidth) / 2);
  }

  private drag(): void {
    let start: { x: number; y: number; left: number; top: number } | null = null;
    this.canvas.addEventListener("pointerdown", (event) => { start = { x: event.clientX, y: event.clientY, left: this.canvas.scrollLeft, top: this.canvas.scrollTop }; });
    this.canvas.addEventListener("pointermove", (event) => {
      if (start && event.buttons) this.canvas.scrollTo(start.left + start.x - event.clientX, start.top + start.y - event.clientY);
    });
    this.canvas.addEventListener("pointerup", () => { start = null; });
  }
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const diagram = new Diagram(model, el);
  const listeners: [string, () => void][] = [
    ["change:svg", () => diagram.showSvg()], ["change:details", () => diagram.showDetails()],
    ["change:selected", () => diagram.showDetails()], ["change:legend", () => diagram.showLegend()],
  ];
  for (const [event, callback] of listeners) model.on(event, callback);
  return () => { for (const [event, callback] of listeners) model.off(event, callback); };
}

export default { render };
