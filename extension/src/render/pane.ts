/** One diagram with its bar, legend and details: turns what a person does into views, and views into pictures. */

import type { Assets, Options } from "./api";
import { type Bar, crumbsOf, fillBar, legendOf, makeBar, type SaveKind, wordOf } from "./bar";
import { FIRST_VIEW, type View } from "./boxes";
import { Canvas, nearest } from "./canvas";
import type { Details } from "./details";
import { copyText, download, make } from "./dom";
import { dress } from "./dress";
import type { Drawing, Summary, Trouble } from "./engine";
import { savePng, saveSvg } from "./exports";
import { helpPanel } from "./help";
import { marksOf } from "./marks";
import { makePicture, pause } from "./picture";
import type { Hit } from "./search";
import { detailsOf, type SideActions, troubleList } from "./side";
import type { SvgElement } from "./svgtree";
import { Cancelled, type EngineClient, Layouter, TooSlow } from "./workers";

const LIMIT = 300;
const HARD_LIMIT = 1500;
const COARSE = 600; // boxes above which edges may wobble for the sake of time
const SECONDS = 2;
const PATIENT = 20;
const BUSY_AFTER = 200;

let panes = 0;

/** What a pane asks of the diagram that holds it. */
export interface PaneHost {
  readonly engine: EngineClient;
  readonly assets: Assets;
  readonly options: Options;
  readonly summary: Summary;
  selected(pane: Pane, fqns: readonly string[]): void;
  viewed(pane: Pane): void;
  overlaid(name: string): void;
}

interface Draw {
  anchor?: string;
  becomes?: string;
  remember?: boolean;
  limit?: number;
  seconds?: number;
}

export class Pane {
  readonly element: HTMLElement;
  overlay = "";
  private readonly uid = `pbd-${++panes}`;
  private readonly canvas = new Canvas();
  private readonly layouter: Layouter;
  private readonly side = make("aside", { class: "pbd-side", "aria-label": "details", tabindex: -1 });
  private readonly legend = make("div", { class: "pbd-legend", role: "group", "aria-label": "legend and filter" });
  private readonly crumbs = make("nav", { class: "pbd-crumbs", "aria-label": "shown part" });
  private readonly message = make("div", { class: "pbd-message", role: "alert" });
  private readonly bar: Bar;
  private readonly views: View[];
  private history: View[] = [];
  private drawing: Drawing | null = null;
  private troubles: Trouble[] = [];
  private findings: string[] = [];
  private details: Details[] = [];
  private chosen: string[] = [];
  private active = "";
  private readonly filter = new Set<string>();
  private readonly pinned = new Set<string>();
  private hits: Hit[] = [];
  private visibleHits = new Set<string>();
  private hit = -1;
  private traced = false;
  private following = false;
  private ticket = 0;
  private searchTicket = 0;
  private finding = Promise.resolve();

  constructor(
    private readonly host: PaneHost,
    public part: number,
    private readonly switchable: readonly number[],
  ) {
    this.layouter = new Layouter(host.assets);
    this.views = host.summary.documents.map(() => ({ ...FIRST_VIEW, depth: host.options.depth ?? 0 }));
    this.bar = makeBar(
      {
        find: () => {
          this.finding = this.find();
        },
        searchKey: (event) => this.searchKey(event),
        nextHit: (step) => void this.nextHit(step),
        overlaid: (name) => this.host.overlaid(name),
        undo: () => void this.undo(),
        openMore: () => void this.openMore(1),
        closeAll: () => void this.closeAll(),
        zoomIn: () => this.canvas.zoomIn(),
        zoomOut: () => this.canvas.zoomOut(),
        fit: () => this.canvas.fit(),
        help: () => this.help(),
        save: (kind) => void this.save(kind),
      },
      this.host.assets.page !== undefined,
    );
    this.message.hidden = true;
    this.element = make(
      "section",
      { class: "pbd-pane" },
      this.bar.element,
      this.crumbs,
      make("div", { class: "pbd-body" }, this.canvas.frame, this.side),
      this.legend,
    );
    this.canvas.frame.append(this.message);
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.canvas.element.addEventListener("click", (event) => this.click(event, false));
    this.canvas.element.addEventListener(
      "dblclick",
      (event) => (event.target as Element).closest(".pbd-handle") || this.click(event, true),
    );
    this.canvas.element.id = `${this.uid}-canvas`;
  }

  get view(): View {
    return this.views[this.part]!;
  }

  /** The view with the modules that are open now, also where the diagram chose them. */
  private get shown(): View {
    return { ...this.view, open: this.drawing?.open ?? this.view.open };
  }

  /** Names of the modules that are selected. */
  get names(): string[] {
    return [...new Set(this.details.flatMap((details) => this.foldedIn(details.id) ?? [details.fqn]))];
  }

  /** Ids of the modules that are open. */
  get open(): string[] {
    return this.drawing?.open ?? [];
  }

  /** Draws for the first time; with the given modules open, or as the diagram chooses. */
  async start(open: string[] | null = null): Promise<void> {
    this.fillBar();
    this.layouter.start().catch(() => undefined); // told when the first layout waits for it
    await this.learn();
    this.showSide();
    await this.show({ ...this.view, open }, { remember: false });
  }

  private async learn(): Promise<void> {
    [this.troubles, this.findings] = await Promise.all([
      this.host.engine.troubles(this.part),
      this.host.engine.findings(this.part),
    ]);
  }

  /** Draws the view again, e.g. with another overlay. */
  async redraw(): Promise<void> {
    this.fillBar();
    await this.show(this.view, { remember: false, anchor: this.active });
  }

  async show(
    view: View,
    {
      anchor = this.active,
      becomes = anchor,
      remember = true,
      limit = this.host.options.limit ?? LIMIT,
      seconds = SECONDS,
    }: Draw = {},
  ): Promise<void> {
    const ticket = ++this.ticket;
    const before = this.view;
    const busy = setTimeout(() => ticket === this.ticket && this.sayBusy(), BUSY_AFTER);
    try {
      const drawing = await this.host.engine.draw(this.part, view, this.overlay);
      if (ticket !== this.ticket) return;
      if (drawing.size > limit) {
        this.offer(view, drawing.size, { anchor, becomes, remember });
        return;
      }
      const svg = await this.layout(drawing, seconds);
      if (ticket !== this.ticket) return;
      const picture = await makePicture(
        svg,
        drawing,
        `${this.host.summary.documents[this.part]!.model}, ${drawing.size} boxes`,
      );
      await pause(); // the page may react between building and showing
      if (ticket !== this.ticket) return;
      if (remember) this.history.push(before);
      this.views[this.part] = { ...view, open: view.open ?? null };
      this.drawing = drawing;
      this.hideMessage();
      if (anchor !== becomes && this.canvas.rect(anchor)) this.canvas.rename(anchor, becomes);
      this.canvas.show(picture, becomes);
      dress(picture, this.uid);
      this.mark();
      this.showLegend();
      this.showCrumbs();
      await this.markHits();
      if (!this.following) this.host.viewed(this);
    } catch (error) {
      if (!(error instanceof Cancelled) && ticket === this.ticket)
        this.fail(error, view, { anchor, becomes, remember });
    } finally {
      clearTimeout(busy);
    }
  }

  /** Opens the way to a module or node, selects it and brings it into view. */
  async reveal(name: string, tell = true): Promise<void> {
    const found = await this.host.engine.reveal(this.part, this.shown, name);
    if (!found) {
      this.say(`${name || "The model"} is not in this graph`);
      return;
    }
    const isThere =
      this.drawing?.boxes.some((box) => box.id === found.id) ||
      this.drawing?.clusters.some((cluster) => `module:${cluster.id}` === found.id);
    if (!isThere || found.view.root !== this.view.root) await this.show(found.view);
    await this.choose([found.id], tell);
    this.canvas.bringIntoView(found.id);
  }

  /** Selects the modules of these names where they can be seen; nothing is opened, nobody is told. */
  async chooseNames(names: readonly string[]): Promise<void> {
    const ids = names.length ? await this.host.engine.boxesOf(this.part, this.shown, [...names]) : [];
    await this.choose(ids, false);
    if (ids[0]) this.canvas.bringIntoView(ids[0]);
  }

  /** Opens and closes what another pane did. */
  async follow(view: View): Promise<void> {
    if (JSON.stringify(view) === JSON.stringify(this.view)) return;
    this.following = true;
    await this.show({ ...view, around: "" }).finally(() => (this.following = false));
  }

  dispose(): void {
    this.ticket++;
    this.layouter.dispose();
    this.canvas.dispose();
  }

  // -- drawing

  private async layout(drawing: Drawing, seconds: number): Promise<SvgElement> {
    if (drawing.size > COARSE) return this.layouter.layout(drawing.compact, seconds * 1000);
    try {
      return await this.layouter.layout(drawing.dot, seconds * 1000);
    } catch (error) {
      if (!(error instanceof TooSlow)) throw error;
      return this.layouter.layout(drawing.compact, seconds * 1000);
    }
  }

  private mark(): void {
    const { picture } = this.canvas;
    if (!picture || !this.drawing) return;
    marksOf(
      picture,
      { chosen: this.chosen, active: this.active, filter: this.filter, hits: this.visibleHits, traced: this.traced },
      (id) => this.canvas.rect(id),
    );
    const active = picture.parts.get(this.active);
    if (active) this.canvas.element.setAttribute("aria-activedescendant", active.element.id);
    else this.canvas.element.removeAttribute("aria-activedescendant");
  }

  private offer(view: View, size: number, draw: Draw): void {
    const choices: [string, () => void][] = [];
    if (size <= HARD_LIMIT)
      choices.push([`Draw all ${size}`, () => void this.show(view, { ...draw, limit: HARD_LIMIT, seconds: PATIENT })]);
    this.offerMessage(
      `This view has ${size} boxes; more than ${this.host.options.limit ?? LIMIT} are hard to read and slow to draw.`,
      [...choices, ...this.smaller(view)],
    );
  }

  private fail(error: unknown, view: View, draw: Draw): void {
    const text = error instanceof Error ? error.message : String(error);
    const again: [string, () => void][] =
      error instanceof TooSlow
        ? [[`Try for ${PATIENT} s`, () => void this.show(view, { ...draw, limit: HARD_LIMIT, seconds: PATIENT })]]
        : [];
    this.offerMessage(text, [...again, ...this.smaller(view)]);
  }

  private smaller(view: View): [string, () => void][] {
    const choices: [string, () => void][] = [];
    if (this.active && !view.around)
      choices.push(["Only around the selection", () => void this.show({ ...view, around: this.active })]);
    choices.push(["First view", () => void this.show({ ...FIRST_VIEW })]);
    if (this.drawing) choices.push(["Keep what is shown", () => this.hideMessage()]);
    return choices;
  }

  private offerMessage(text: string, choices: [string, () => void][]): void {
    this.message.replaceChildren(
      make("p", {}, text),
      make(
        "div",
        { class: "pbd-actions" },
        ...choices.map(([name, act]) =>
          make("button", { type: "button", click: () => (this.hideMessage(), act()) }, name),
        ),
      ),
    );
    this.message.hidden = false;
  }

  private sayBusy(): void {
    this.offerMessage("Drawing …", this.drawing ? [["Cancel", () => this.cancel()]] : []);
  }

  private cancel(): void {
    this.ticket++;
    this.layouter.cancel();
    this.hideMessage();
  }

  private hideMessage(): void {
    this.message.hidden = true;
    this.message.replaceChildren();
  }

  private say(text: string): void {
    this.bar.status.textContent = text;
    setTimeout(() => this.bar.status.textContent === text && (this.bar.status.textContent = ""), 4000);
  }

  // -- bar, legend, side

  private fillBar(): void {
    fillBar(this.bar, this.host.summary, this.part, this.switchable, this.overlay, (part) => void this.switchTo(part));
  }

  private showLegend(): void {
    this.legend.replaceChildren(
      ...legendOf(this.drawing!, this.filter, this.overlay, (status) => this.toggleFilter(status)),
    );
  }

  private toggleFilter(status: string): void {
    if (!this.filter.delete(status)) this.filter.add(status);
    this.showLegend();
    this.mark();
    this.legend.querySelector<HTMLElement>(`.pbd-is-${status}`)?.focus();
  }

  private showCrumbs(): void {
    const { model } = this.host.summary.documents[this.part]!;
    this.crumbs.replaceChildren(
      ...crumbsOf(model, this.view, this.details[0]?.fqn ?? "", {
        all: () => void (this.view.root || this.view.around ? this.backToAll() : this.choose([])),
        root: (group) => void this.show({ ...this.view, root: group, around: "" }),
        reveal: (group) => void this.reveal(group),
        hops: (step) => void this.hops(step),
      }),
    );
  }

  private showSide(): void {
    const actions: SideActions = {
      reveal: (id) => void this.reveal(id).then(() => this.canvas.element.focus({ preventScroll: true })),
      toggle: (id) => void this.toggle(id),
      focusOn: (group) => void this.show({ ...this.view, root: group, around: "" }),
      openSource: this.host.options.openSource,
      say: (text) => this.say(text),
    };
    const open = new Set(this.drawing?.open ?? []);
    this.side.classList.toggle("pbd-quiet", !this.details.length && !this.troubles.length);
    this.side.replaceChildren(
      ...(this.details.length
        ? detailsOf(this.details, (group) => open.has(group), actions)
        : troubleList(this.troubles, this.findings, actions)),
    );
  }

  private help(): void {
    if (this.element.querySelector(".pbd-help")) return;
    const panel = helpPanel(() => {
      panel.remove();
      this.canvas.element.focus({ preventScroll: true });
    });
    this.canvas.frame.append(panel);
  }

  private async save(kind: SaveKind): Promise<void> {
    const { picture } = this.canvas;
    const name = this.host.summary.documents[this.part]!.model.replace(/[^\w.-]+/g, "_") || "model";
    const legend = [...this.legend.querySelectorAll(".pbd-key")].map((row) => row.textContent).join("   ");
    try {
      if (kind === "html")
        download(
          `${name}.html`,
          new Blob([await this.host.assets.page!(await this.host.engine.text())], { type: "text/html" }),
        );
      else if (picture) await (kind === "svg" ? saveSvg : savePng)(picture, this.element, legend, name);
      this.say(`Saved ${name}.${kind}`);
    } catch (error) {
      this.say(`Could not save: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  // -- selection

  private click(event: MouseEvent, twice: boolean): void {
    const { picture } = this.canvas;
    const element = (event.target as Element).closest("g.node, g.cluster");
    const part = element && picture ? [...picture.parts.values()].find((each) => each.element === element) : undefined;
    this.canvas.element.focus({ preventScroll: true });
    this.pinned.clear();
    if (!part) {
      if (!twice && !element) void this.choose([]);
      return;
    }
    if (part.box?.kind === "reference") void this.followReference(part.id);
    else if (twice || (event.target as Element).closest(".pbd-handle")) void this.toggle(part.id);
    else void this.choose(event.shiftKey || event.ctrlKey || event.metaKey ? this.withToggled(part.id) : [part.id]);
  }

  private withToggled(id: string): string[] {
    return this.chosen.includes(id) ? this.chosen.filter((other) => other !== id) : [...this.chosen, id];
  }

  private async choose(ids: string[], tell = true): Promise<void> {
    this.chosen = ids;
    this.active = ids[ids.length - 1] ?? "";
    this.mark();
    this.details = (await this.host.engine.details(this.part, ids)).map((details) => this.ofAll(details));
    this.showSide();
    this.showCrumbs();
    this.mark();
    if (tell) this.host.selected(this, this.names);
  }

  /** Names of the modules that a box folds together. */
  private foldedIn(id: string): string[] | undefined {
    const folded = this.drawing?.boxes.find((box) => box.id === id && box.kind === "fold")?.folded;
    return folded && [...new Set(folded.map((group) => group.replace(/@\d+$/, "")))];
  }

  /** Several that are alike are described by the first, and say so. */
  private ofAll(details: Details): Details {
    const box = this.drawing?.boxes.find((each) => each.id === details.id && each.kind === "fold");
    if (!box) return details;
    const around = details.fqn.slice(0, details.fqn.length - (box.title.split(" … ")[0] ?? "").length);
    return {
      ...details,
      title: `${around}${box.title}`,
      rows: [["alike", `${box.folded.length}, each as follows`], ...details.rows],
    };
  }

  /** A reference leads to the box of its value. */
  private async followReference(id: string): Promise<void> {
    const target = this.drawing!.edges.find(([from]) => from === id)?.[1] ?? "";
    const source = id.startsWith("ref:") ? id.slice(4, id.length - target.length - 1) : id.slice(id.indexOf(":") + 1);
    if (id.startsWith("to:")) return;
    await this.reveal(source);
  }

  // -- views

  private async toggle(id: string): Promise<void> {
    const box = this.drawing?.boxes.find((each) => each.id === id);
    if (box?.kind === "reference") return this.followReference(id);
    const view = await this.host.engine.toggle(this.part, this.shown, id);
    if (view.open!.length === this.shown.open!.length) return;
    const group = id.startsWith("fold:")
      ? id.slice(5)
      : id.startsWith("module:")
        ? id.slice(7)
        : (this.details.find((each) => each.id === id)?.fqn ?? "");
    const becomes = id.startsWith("fold:") ? `module:${group}` : id;
    await this.show(view, { anchor: id, becomes });
    const now = this.canvas.rect(becomes) ? becomes : await this.boxOf(id);
    if (now) await this.choose([now]);
    this.showSide();
  }

  private async boxOf(id: string): Promise<string> {
    return (await this.host.engine.visibleOf(this.part, this.shown, [id]))[0] ?? "";
  }

  private async openMore(levels: number): Promise<void> {
    await this.show(
      await this.host.engine.openMore(
        this.part,
        this.shown,
        levels > 1 ? this.active : "",
        levels,
        this.host.options.limit ?? LIMIT,
      ),
    );
  }

  private async closeAll(): Promise<void> {
    await this.show({ ...this.view, open: [], depth: 0, unfolded: [] });
  }

  private async undo(): Promise<void> {
    const before = this.history.pop();
    if (before) await this.show(before, { remember: false });
    else this.say("Nothing to undo");
  }

  private async hops(step: number): Promise<void> {
    await this.show({ ...this.view, hops: Math.max(1, Math.min(9, this.view.hops + step)) });
  }

  private async backToAll(): Promise<void> {
    if (this.view.root || this.view.around) await this.show({ ...this.view, root: "", around: "" });
  }

  /** Another level of the same model; what was selected stays selected by name. */
  private async switchTo(part: number): Promise<void> {
    if (part === this.part) return;
    const names = this.names;
    this.part = part;
    this.history = [];
    this.canvas.clear();
    this.drawing = null;
    this.fillBar();
    await this.learn();
    await this.show(this.view, { remember: false });
    await this.choose([]);
    if (names[0] !== undefined) await this.reveal(names[0]);
    await this.find();
    this.canvas.element.focus({ preventScroll: true });
  }

  // -- search

  private async find(): Promise<void> {
    const ticket = ++this.searchTicket;
    const query = this.bar.search.value;
    const hits = query.trim() ? await this.host.engine.search(this.part, query) : [];
    if (ticket !== this.searchTicket) return;
    this.hits = hits;
    this.hit = -1;
    this.bar.count.textContent = query.trim() ? `${hits.length} found` : "";
    await this.markHits();
  }

  private async markHits(): Promise<void> {
    const ids = this.hits.length
      ? await this.host.engine.visibleOf(
          this.part,
          this.shown,
          this.hits.map((hit) => hit.id),
        )
      : [];
    this.visibleHits = new Set(ids);
    this.mark();
  }

  private async nextHit(step: number): Promise<void> {
    await this.finding; // Enter may be faster than the search
    if (!this.hits.length) return;
    this.hit =
      this.hit < 0 && step < 0 ? this.hits.length - 1 : (this.hit + step + this.hits.length) % this.hits.length;
    this.bar.count.textContent = `${this.hit + 1} of ${this.hits.length}`;
    await this.reveal(this.hits[this.hit]!.id);
  }

  private searchKey(event: KeyboardEvent): void {
    if (event.key === "Enter") void this.nextHit(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") {
      this.bar.search.value = "";
      void this.find();
      this.canvas.element.focus({ preventScroll: true });
    } else return;
    event.preventDefault();
  }

  private async nextTrouble(status: string): Promise<void> {
    const ids = this.troubles
      .filter((trouble) => trouble.status === status)
      .map((trouble) => trouble.id || trouble.fqn);
    if (!ids.length) return this.say(`Nothing here is ${wordOf(status)}`);
    const at = ids.findIndex((id) => id === this.active);
    await this.reveal(ids[(at + 1) % ids.length]!);
  }

  // -- keys

  private key(event: KeyboardEvent): void {
    const commands = event.ctrlKey || event.metaKey || event.altKey;
    if (!commands) event.stopPropagation(); // the page's shortcuts must not run while the diagram has the focus
    const target = event.target as Element;
    if (
      target instanceof HTMLInputElement ||
      target instanceof HTMLSelectElement ||
      target.closest(".pbd-help, summary")
    )
      return;
    if (target instanceof HTMLButtonElement && (event.key === "Enter" || event.key === " " || event.key === "Escape"))
      return;
    const undo = commands && (event.key === "z" || event.key === "Z");
    if (commands && !undo) return;
    const act = undo ? (): void => void this.undo() : this.action(event);
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  private action(event: KeyboardEvent): (() => void) | undefined {
    const { key, shiftKey } = event;
    const arrow = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" }[key] as
      | "up"
      | "down"
      | "left"
      | "right"
      | undefined;
    if (arrow) return () => this.move(arrow, shiftKey);
    if (/^[1-9]$/.test(key))
      return () => void this.host.engine.toDepth(this.part, this.view, Number(key)).then((view) => this.show(view));
    const focus = this.active;
    const actions: Record<string, () => void> = {
      Enter: () => focus && void this.toggle(focus),
      " ": () => this.pin(focus),
      Home: () => this.moveTo(this.ordered()[0]),
      End: () => this.moveTo(this.ordered().at(-1)),
      "/": () => this.bar.search.focus(),
      "?": () => this.help(),
      f: () => void this.nextTrouble("failed"),
      l: () => void this.nextTrouble("leaf"),
      o: () => void this.openMore(1),
      a: () => void this.openMore(99),
      x: () => void this.closeAll(),
      r: () => focus && void this.host.engine.unfold(this.part, this.shown, focus).then((view) => this.show(view)),
      ".": () => this.details[0]?.group && void this.show({ ...this.view, root: this.details[0].group, around: "" }),
      n: () => focus && void this.show({ ...this.view, around: focus }),
      h: () => ((this.traced = !this.traced), this.mark()),
      b: () => void this.backToAll(),
      u: () => void this.undo(),
      v: () => this.nextOverlay(),
      g: () =>
        this.switchable.length > 1 &&
        void this.switchTo(this.switchable[(this.switchable.indexOf(this.part) + 1) % this.switchable.length]!),
      c: () => void this.copyNames(),
      s: () => this.openSource(),
      m: () => ((this.canvas.mapWanted = !this.canvas.mapWanted), this.canvas.drawMap()),
      "+": () => this.canvas.zoomIn(),
      "=": () => this.canvas.zoomIn(),
      "-": () => this.canvas.zoomOut(),
      "0": () => this.canvas.fit(),
      Escape: () => this.clear(),
    };
    return actions[key.length === 1 ? key.toLowerCase() : key];
  }

  /** Keeps a box selected while others are gone to, or lets it go. */
  private pin(id: string): void {
    if (!id) return;
    const kept = this.pinned.delete(id);
    if (!kept) this.pinned.add(id);
    this.say(kept ? "Not kept any more" : "Kept selected: go on to add more");
  }

  private clear(): void {
    this.pinned.clear();
    this.bar.search.value = "";
    this.filter.clear();
    this.traced = false;
    if (this.drawing) this.showLegend();
    void this.find();
    void this.choose([]);
  }

  private ordered(): string[] {
    return (this.drawing?.boxes ?? []).filter((box) => box.kind !== "reference").map((box) => box.id);
  }

  private moveTo(id: string | undefined): void {
    if (id === undefined) return;
    void this.choose([...new Set([...this.pinned, id])]);
    this.canvas.bringIntoView(id);
  }

  private move(direction: "up" | "down" | "left" | "right", alongData: boolean): void {
    const { picture } = this.canvas;
    if (!picture) return;
    if (!this.active || !picture.parts.has(this.active)) return this.moveTo(this.ordered()[0]);
    if (alongData && (direction === "up" || direction === "down")) {
      const edge = picture.edges.find(({ from, to }) => (direction === "down" ? from : to) === this.active);
      const next = edge && (direction === "down" ? edge.to : edge.from);
      return next?.startsWith("ref:") ? void this.followReference(next) : this.moveTo(next);
    }
    const found = nearest(picture.parts.values(), (id) => this.canvas.rect(id), this.active, direction);
    this.moveTo(found ?? undefined);
  }

  private openSource(): void {
    const source = this.details[0]?.source;
    if (source) this.host.options.openSource?.(source.file, source.line, source.code);
  }

  private nextOverlay(): void {
    const names = ["", ...this.host.summary.overlays];
    if (names.length > 1) this.host.overlaid(names[(names.indexOf(this.overlay) + 1) % names.length]!);
  }

  private async copyNames(): Promise<void> {
    const names = this.names.filter(Boolean);
    if (!names.length)
      return this.say(this.chosen.length ? "It belongs to no module: there is no name to copy" : "Nothing is selected");
    await copyText(names.join("\n"));
    this.say(`Copied ${names.length > 1 ? `${names.length} names` : names[0]}`);
  }
}
