/** Turns views of a document into pictures, in time or not at all, and remembers the views before. */

import type { Assets, Options } from "./api";
import { FIRST_VIEW, type View } from "./boxes";
import { Canvas } from "./canvas";
import type { Drawing, Summary } from "./engine";
import { type Choice, Notice } from "./notice";
import { makePicture, type Picture, pause } from "./picture";
import type { SvgElement } from "./svgtree";
import { Cancelled, type EngineClient, Layouter, TooSlow } from "./workers";

const LIMIT = 300;
const HARD_LIMIT = 1500;
const COARSE = 600; // boxes above which edges may wobble for the sake of time
const SECONDS = 2;
const PATIENT = 20;
const BUSY_AFTER = 200;

/** What all panes of a diagram share. */
export interface StageHost {
  readonly engine: EngineClient;
  readonly assets: Assets;
  readonly options: Options;
  readonly summary: Summary;
}

export interface Draw {
  /** The box that stays where it is, and the one that takes its place. */
  anchor?: string;
  becomes?: string;
  remember?: boolean;
  limit?: number;
  seconds?: number;
}

export class Stage {
  readonly canvas = new Canvas();
  drawing: Drawing | null = null;
  overlay = "";
  /** The id of the box with the focus; it stays in its place when something else is drawn. */
  active = "";
  private readonly layouter: Layouter;
  private readonly notice = new Notice();
  private readonly views: View[];
  private history: View[] = [];
  private ticket = 0;

  constructor(
    readonly host: StageHost,
    public part: number,
    private readonly drawn: (picture: Picture) => Promise<void>,
  ) {
    this.layouter = new Layouter(host.assets);
    this.views = host.summary.documents.map(() => ({ ...FIRST_VIEW, depth: host.options.depth ?? 0 }));
    this.canvas.frame.append(this.notice.element);
  }

  get model(): string {
    return this.host.summary.documents[this.part]!.model;
  }

  get view(): View {
    return this.views[this.part]!;
  }

  /** The view with the modules that are open now, also where the diagram chose them. */
  get shown(): View {
    return { ...this.view, open: this.drawing?.open ?? this.view.open };
  }

  /** How many boxes are drawn without asking. */
  get limit(): number {
    return this.host.options.limit ?? LIMIT;
  }

  /** Loads Graphviz before the first layout needs it. */
  warmUp(): void {
    this.layouter.start().catch(() => undefined); // the first layout waits for it, and tells what is wrong
  }

  async show(view: View, draw: Draw = {}): Promise<void> {
    const ticket = ++this.ticket;
    const { anchor = this.active, becomes = anchor, remember = true, limit = this.limit, seconds = SECONDS } = draw;
    const before = this.view;
    const again = { anchor, becomes, remember };
    const busy = setTimeout(() => ticket === this.ticket && this.sayBusy(), BUSY_AFTER);
    try {
      const drawing = await this.host.engine.draw(this.part, view, this.overlay);
      if (ticket !== this.ticket) return;
      if (drawing.size > limit) {
        this.tooMany(view, drawing.size, again);
        return;
      }
      const svg = await this.layout(drawing, seconds);
      if (ticket !== this.ticket) return;
      const picture = await makePicture(svg, drawing, `${this.model}, ${drawing.size} boxes`);
      await pause(); // the page may react between building and showing
      if (ticket !== this.ticket) return;
      if (remember) this.history.push(before);
      this.views[this.part] = { ...view, open: view.open ?? null };
      this.drawing = drawing;
      this.notice.hide();
      if (anchor !== becomes && this.canvas.rect(anchor)) this.canvas.rename(anchor, becomes);
      this.canvas.show(picture, becomes);
      await this.drawn(picture);
    } catch (error) {
      if (!(error instanceof Cancelled) && ticket === this.ticket) this.failed(error, view, again);
    } finally {
      clearTimeout(busy);
    }
  }

  /** Another level of the same model: nothing is drawn yet, and there is nothing to undo. */
  turnTo(part: number): void {
    this.part = part;
    this.history = [];
    this.canvas.clear();
    this.drawing = null;
  }

  /** Draws the view before the last change; false if there is none. */
  async undo(): Promise<boolean> {
    const before = this.history.pop();
    if (before) await this.show(before, { remember: false });
    return before !== undefined;
  }

  dispose(): void {
    this.ticket++;
    this.layouter.dispose();
    this.canvas.dispose();
  }

  private async layout(drawing: Drawing, seconds: number): Promise<SvgElement> {
    if (drawing.size > COARSE) return this.layouter.layout(drawing.compact, seconds * 1000);
    try {
      return await this.layouter.layout(drawing.dot, seconds * 1000);
    } catch (error) {
      if (!(error instanceof TooSlow)) throw error;
      return this.layouter.layout(drawing.compact, seconds * 1000);
    }
  }

  private tooMany(view: View, size: number, draw: Draw): void {
    const text = `This view has ${size} boxes; more than ${this.limit} are hard to read and slow to draw.`;
    const all = size <= HARD_LIMIT ? [this.patiently(`Draw all ${size}`, view, draw)] : [];
    this.notice.show(text, [...all, ...this.smaller(view)]);
  }

  private failed(error: unknown, view: View, draw: Draw): void {
    const text = error instanceof Error ? error.message : String(error);
    const again = error instanceof TooSlow ? [this.patiently(`Try for ${PATIENT} s`, view, draw)] : [];
    this.notice.show(text, [...again, ...this.smaller(view)]);
  }

  private patiently(name: string, view: View, draw: Draw): Choice {
    return [name, () => void this.show(view, { ...draw, limit: HARD_LIMIT, seconds: PATIENT })];
  }

  private smaller(view: View): Choice[] {
    const choices: Choice[] = [];
    if (this.active && !view.around)
      choices.push(["Only around the selection", () => void this.show({ ...view, around: this.active })]);
    choices.push(["First view", () => void this.show({ ...FIRST_VIEW })]);
    if (this.drawing) choices.push(["Keep what is shown", () => this.notice.hide()]);
    return choices;
  }

  private sayBusy(): void {
    this.notice.show("Drawing …", this.drawing ? [["Cancel", () => this.cancel()]] : []);
  }

  private cancel(): void {
    this.ticket++;
    this.layouter.cancel();
    this.notice.hide();
  }
}
