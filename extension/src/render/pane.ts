/** One diagram with its bar, legend and details around the stage. */

import { type Bar, crumbsOf, fillBar, legendOf, makeBar, type SaveKind, wordOf } from "./bar";
import type { View } from "./boxes";
import { Commands } from "./commands";
import { download, make } from "./dom";
import { dress } from "./dress";
import type { Trouble } from "./engine";
import { savePng, saveSvg } from "./exports";
import { Finder } from "./finder";
import { helpPanel } from "./help";
import { type KeyTarget, pressed } from "./keys";
import { marksOf } from "./marks";
import { OFFERS_CHANGED, offersFor } from "./offers";
import type { Picture } from "./picture";
import { Selection } from "./selection";
import { detailsOf, type SideActions, troubleList } from "./side";
import { Stage, type StageHost } from "./stage";

const SAID_FOR = 4000;

let panes = 0;

/** What a pane asks of the diagram that holds it. */
export interface PaneHost extends StageHost {
  selected(pane: Pane, fqns: readonly string[]): void;
  viewed(pane: Pane): void;
  overlaid(name: string): void;
}

export class Pane implements KeyTarget {
  readonly element: HTMLElement;
  readonly stage: Stage;
  readonly selection: Selection;
  readonly commands: Commands;
  private readonly uid = `pbd-${++panes}`;
  private readonly side = make("aside", { class: "pbd-side", "aria-label": "details", tabindex: -1 });
  private readonly legend = make("div", { class: "pbd-legend", role: "group", "aria-label": "legend and filter" });
  private readonly crumbs = make("nav", { class: "pbd-crumbs", "aria-label": "shown part" });
  private readonly bar: Bar;
  private readonly finder: Finder;
  private readonly filter = new Set<string>();
  private troubles: Trouble[] = [];
  private findings: string[] = [];
  private traced = false;
  private following = false;

  constructor(
    private readonly host: PaneHost,
    part: number,
    private readonly switchable: readonly number[],
  ) {
    this.stage = new Stage(host, part, (picture) => this.drawn(picture));
    const say = (text: string): void => this.say(text);
    this.selection = new Selection(this.stage, {
      marked: () => this.mark(),
      chosen: (tell) => this.chosen(tell),
      say,
    });
    this.commands = new Commands(this.stage, this.selection, say);
    this.bar = this.makeBar();
    this.finder = new Finder(this.bar, this.stage, this.selection, () => this.mark());
    const { frame, element } = this.stage.canvas;
    const body = make("div", { class: "pbd-body" }, frame, this.side);
    this.element = make("section", { class: "pbd-pane" }, this.bar.element, this.crumbs, body, this.legend);
    this.element.addEventListener("keydown", (event) => pressed(event, this));
    element.addEventListener("click", (event) => this.click(event, false));
    element.addEventListener("dblclick", (event) => {
      if (!(event.target as Element).closest(".pbd-handle")) this.click(event, true);
    });
    this.element.addEventListener(OFFERS_CHANGED, () => this.selection.details.length && this.showSide());
    element.id = `${this.uid}-canvas`;
  }

  get part(): number {
    return this.stage.part;
  }

  get view(): View {
    return this.stage.view;
  }

  /** Ids of the modules that are open. */
  get open(): string[] {
    return this.stage.drawing?.open ?? [];
  }

  /** Draws for the first time; with the given modules open, or as the diagram chooses. */
  async start(open: string[] | null = null): Promise<void> {
    this.fillBar();
    this.stage.warmUp();
    await this.learn();
    this.showSide();
    await this.stage.show({ ...this.view, open }, { remember: false });
  }

  /** Draws the view again, coloured by another overlay, or by the same with other values. */
  async colourBy(overlay: string): Promise<void> {
    this.stage.overlay = overlay;
    this.fillBar();
    await this.stage.show(this.view, { remember: false });
    if (this.selection.ids.length) await this.selection.choose(this.selection.ids, false); // whose details hold values
  }

  /** Opens and closes what another pane did. */
  async follow(view: View): Promise<void> {
    if (JSON.stringify(view) === JSON.stringify(this.view)) return;
    this.following = true;
    try {
      await this.stage.show({ ...view, around: "" });
    } finally {
      this.following = false;
    }
  }

  dispose(): void {
    this.stage.dispose();
  }

  // -- keys

  search(): void {
    this.bar.search.focus();
  }

  help(): void {
    if (this.element.querySelector(".pbd-help")) return;
    const panel = helpPanel(() => {
      panel.remove();
      this.focus();
    });
    this.stage.canvas.frame.append(panel);
  }

  async nextTrouble(status: string): Promise<void> {
    const chosen = this.troubles.filter((trouble) => trouble.status === status);
    const ids = chosen.map((trouble) => trouble.id || trouble.fqn);
    if (!ids.length) this.say(`Nothing here is ${wordOf(status)}`);
    else await this.selection.reveal(ids[(ids.indexOf(this.stage.active) + 1) % ids.length]!);
  }

  nextOverlay(): void {
    const names = ["", ...this.host.summary.overlays];
    if (names.length > 1) this.host.overlaid(names[(names.indexOf(this.stage.overlay) + 1) % names.length]!);
  }

  async nextPart(): Promise<void> {
    const parts = this.switchable;
    if (parts.length > 1) await this.switchTo(parts[(parts.indexOf(this.part) + 1) % parts.length]!);
  }

  trace(): void {
    this.traced = !this.traced;
    this.mark();
  }

  clear(): void {
    this.selection.unpin();
    this.filter.clear();
    this.traced = false;
    this.showLegend();
    this.finder.clear();
    void this.selection.choose([]);
  }

  // -- what is around the picture

  private makeBar(): Bar {
    const { canvas } = this.stage;
    const actions = {
      find: () => void this.finder.find(),
      searchKey: (event: KeyboardEvent) => this.finder.key(event),
      nextHit: (step: number) => void this.finder.next(step),
      overlaid: (name: string) => this.host.overlaid(name),
      undo: () => void this.commands.undo(),
      openMore: () => void this.commands.openMore(1),
      closeAll: () => void this.commands.closeAll(),
      zoomIn: () => canvas.zoomIn(),
      zoomOut: () => canvas.zoomOut(),
      fit: () => canvas.fit(),
      help: () => this.help(),
      save: (kind: SaveKind) => void this.save(kind),
    };
    return makeBar(actions, this.host.assets.page !== undefined);
  }

  private async learn(): Promise<void> {
    const { engine } = this.host;
    [this.troubles, this.findings] = await Promise.all([engine.troubles(this.part), engine.findings(this.part)]);
  }

  private async drawn(picture: Picture): Promise<void> {
    dress(picture, this.uid);
    this.stage.canvas.element.setAttribute("aria-label", picture.label);
    this.mark();
    this.showLegend();
    this.showCrumbs();
    await this.finder.update();
    if (!this.following) this.host.viewed(this);
  }

  private chosen(tell: boolean): void {
    this.showSide();
    this.showCrumbs();
    this.mark();
    if (tell) this.host.selected(this, this.selection.names);
  }

  private mark(): void {
    const { canvas, active } = this.stage;
    const { picture, element } = canvas;
    if (!picture) return;
    const { filter, traced } = this;
    const marked = { chosen: this.selection.ids, active, filter, hits: this.finder.visible, traced };
    marksOf(picture, marked, (id) => canvas.rect(id));
    const part = picture.parts.get(active);
    if (part) element.setAttribute("aria-activedescendant", part.element.id);
    else element.removeAttribute("aria-activedescendant");
  }

  private fillBar(): void {
    fillBar(this.bar, this.host.summary, this.part, this.switchable, this.stage.overlay, (part) => {
      void this.switchTo(part);
    });
  }

  private showLegend(): void {
    const { drawing, overlay } = this.stage;
    if (!drawing) return;
    this.legend.replaceChildren(...legendOf(drawing, this.filter, overlay, (status) => this.toggleFilter(status)));
  }

  private toggleFilter(status: string): void {
    if (!this.filter.delete(status)) this.filter.add(status);
    this.showLegend();
    this.mark();
    this.legend.querySelector<HTMLElement>(`.pbd-is-${status}`)?.focus();
  }

  private showCrumbs(): void {
    const { view, selection, commands } = this;
    const crumbs = crumbsOf(this.stage.model, view, selection.details[0]?.fqn ?? "", {
      all: () => void (view.root || view.around ? commands.backToAll() : selection.choose([])),
      root: (group) => void commands.focusOn(group),
      reveal: (group) => void selection.reveal(group),
      hops: (step) => void commands.hops(step),
    });
    this.crumbs.replaceChildren(...crumbs);
  }

  private showSide(): void {
    const { details } = this.selection;
    const actions: SideActions = {
      reveal: (id) => void this.selection.reveal(id).then(() => this.focus()),
      toggle: (id) => void this.selection.toggle(id),
      focusOn: (group) => void this.commands.focusOn(group),
      openSource: this.host.options.openSource,
      offers: (fqn) => offersFor(this.element, fqn),
      say: (text) => this.say(text),
    };
    const open = new Set(this.open);
    const parts = details.length
      ? detailsOf(details, (group) => open.has(group), actions)
      : troubleList(this.troubles, this.findings, actions);
    this.side.classList.toggle("pbd-quiet", !details.length && !this.troubles.length);
    this.side.replaceChildren(...parts);
  }

  private say(text: string): void {
    const { status } = this.bar;
    status.textContent = text;
    setTimeout(() => {
      if (status.textContent === text) status.textContent = "";
    }, SAID_FOR);
  }

  private focus(): void {
    this.stage.canvas.element.focus({ preventScroll: true });
  }

  private async save(kind: SaveKind): Promise<void> {
    const { picture } = this.stage.canvas;
    const { engine, assets } = this.host;
    const name = this.stage.model.replace(/[^\w.-]+/g, "_") || "model";
    const lines = [".pbd-key", ".pbd-size"].map((kind) =>
      [...this.legend.querySelectorAll(kind)].map((row) => row.textContent).join("   "),
    );
    const legend = lines.filter(Boolean);
    try {
      if (kind === "html")
        download(`${name}.html`, new Blob([await assets.page!(await engine.text())], { type: "text/html" }));
      else if (picture) await (kind === "svg" ? saveSvg : savePng)(picture, this.element, legend, name);
      this.say(`Saved ${name}.${kind}`);
    } catch (error) {
      this.say(`Could not save: ${error instanceof Error ? error.message : String(error)}`);
    }
  }

  private click(event: MouseEvent, twice: boolean): void {
    const { picture } = this.stage.canvas;
    const target = event.target as Element;
    const element = target.closest("g.node, g.cluster");
    const part = element && picture ? [...picture.parts.values()].find((each) => each.element === element) : undefined;
    this.focus();
    this.selection.unpin();
    if (part?.box?.kind === "reference") void this.selection.followReference(part.id);
    else if (part && (twice || target.closest(".pbd-handle"))) void this.selection.toggle(part.id);
    else if (part) this.selection.click(part.id, event.shiftKey || event.ctrlKey || event.metaKey);
    else if (!twice && !element) void this.selection.choose([]);
  }

  /** Another level of the same model; what was selected stays selected by name. */
  private async switchTo(part: number): Promise<void> {
    if (part === this.part) return;
    const [name] = this.selection.names;
    this.stage.turnTo(part);
    this.fillBar();
    await this.learn();
    await this.stage.show(this.view, { remember: false });
    await this.selection.choose([]);
    if (name !== undefined) await this.selection.reveal(name);
    await this.finder.find();
    this.focus();
  }
}
