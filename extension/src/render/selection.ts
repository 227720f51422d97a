/** What is selected on a stage, and how the selection moves. */

import type { View } from "./boxes";
import { nearest } from "./canvas";
import type { Details } from "./details";
import type { Stage } from "./stage";

export type Direction = "up" | "down" | "left" | "right";

export interface SelectionHost {
  /** The selected ids changed. */
  marked(): void;
  /** Their details are known; `tell` says whether others shall hear of it. */
  chosen(tell: boolean): void;
  say(text: string): void;
}

export class Selection {
  ids: string[] = [];
  details: Details[] = [];
  private readonly pinned = new Set<string>();

  constructor(
    private readonly stage: Stage,
    private readonly host: SelectionHost,
  ) {}

  /** Names of the modules that are selected. */
  get names(): string[] {
    return [...new Set(this.details.flatMap((details) => this.foldedIn(details.id) ?? [details.fqn]))];
  }

  async choose(ids: string[], tell = true): Promise<void> {
    const { stage } = this;
    this.ids = ids;
    stage.active = ids[ids.length - 1] ?? "";
    this.host.marked();
    this.details = (await stage.host.engine.details(stage.part, ids)).map((details) => this.ofAll(details));
    this.host.chosen(tell);
  }

  /** Selects a box that was clicked, beside the others or alone. */
  click(id: string, beside: boolean): void {
    if (!beside) void this.choose([id]);
    else if (this.ids.includes(id)) void this.choose(this.ids.filter((other) => other !== id));
    else void this.choose([...this.ids, id]);
  }

  /** Opens the way to a module or node, selects it and brings it into view. */
  async reveal(name: string, tell = true): Promise<void> {
    const { stage } = this;
    const found = await stage.host.engine.reveal(stage.part, stage.shown, name);
    if (!found) {
      this.host.say(`${name || "The model"} is not in this graph`);
      return;
    }
    if (!this.isThere(found.id) || found.view.root !== stage.view.root) await stage.show(found.view);
    await this.choose([found.id], tell);
    stage.canvas.bringIntoView(found.id);
  }

  /** Selects the modules of these names where they can be seen; nothing is opened, nobody is told. */
  async chooseNames(names: readonly string[]): Promise<void> {
    const { stage } = this;
    const ids = names.length ? await stage.host.engine.boxesOf(stage.part, stage.shown, [...names]) : [];
    await this.choose(ids, false);
    if (ids[0]) stage.canvas.bringIntoView(ids[0]);
  }

  /** A reference leads to the box of its value. */
  async followReference(id: string): Promise<void> {
    if (id.startsWith("to:")) return;
    const target = this.stage.drawing!.edges.find(([from]) => from === id)?.[1] ?? "";
    await this.reveal(id.startsWith("ref:") ? id.slice(4, -target.length - 1) : id.slice(id.indexOf(":") + 1));
  }

  /** Opens a closed module and closes an open one; an operation closes the module that it lies in. */
  async toggle(id: string): Promise<void> {
    const { stage } = this;
    const box = stage.drawing?.boxes.find((each) => each.id === id);
    if (box?.kind === "reference") return this.followReference(id);
    const view: View = await stage.host.engine.toggle(stage.part, stage.shown, id);
    if (view.open!.length === stage.shown.open!.length) return;
    const becomes = id.startsWith("fold:") ? `module:${id.slice(5)}` : id;
    await stage.show(view, { anchor: id, becomes });
    const now = stage.canvas.rect(becomes) ? becomes : await this.boxOf(id);
    if (now) await this.choose([now]);
    else this.host.chosen(false);
  }

  /** Keeps a box selected while others are gone to, or lets it go. */
  pin(id: string): void {
    if (!id) return;
    const wasPinned = this.pinned.delete(id);
    if (!wasPinned) this.pinned.add(id);
    this.host.say(wasPinned ? "Not kept any more" : "Kept selected: go on to add more");
  }

  unpin(): void {
    this.pinned.clear();
  }

  /** To the next box in a direction; along the data, to what feeds it or what it feeds. */
  move(direction: Direction, alongData: boolean): void {
    const { canvas, active } = this.stage;
    const { picture } = canvas;
    if (!picture) return;
    if (!active || !picture.parts.has(active)) {
      this.moveTo(this.ordered[0]);
      return;
    }
    if (alongData && (direction === "up" || direction === "down")) {
      const edge = picture.edges.find(({ from, to }) => (direction === "down" ? from : to) === active);
      const next = edge && (direction === "down" ? edge.to : edge.from);
      if (next?.startsWith("ref:")) void this.followReference(next);
      else this.moveTo(next);
      return;
    }
    this.moveTo(nearest(picture.parts.values(), (id) => canvas.rect(id), active, direction) ?? undefined);
  }

  moveTo(id: string | undefined): void {
    if (id === undefined) return;
    void this.choose([...new Set([...this.pinned, id])]);
    this.stage.canvas.bringIntoView(id);
  }

  /** The boxes in the order of the graph. */
  get ordered(): string[] {
    return (this.stage.drawing?.boxes ?? []).filter((box) => box.kind !== "reference").map((box) => box.id);
  }

  private isThere(id: string): boolean {
    const drawing = this.stage.drawing;
    if (!drawing) return false;
    return (
      drawing.boxes.some((box) => box.id === id) || drawing.clusters.some((cluster) => `module:${cluster.id}` === id)
    );
  }

  private async boxOf(id: string): Promise<string> {
    const { stage } = this;
    return (await stage.host.engine.visibleOf(stage.part, stage.shown, [id]))[0] ?? "";
  }

  /** Names of the modules that a box folds together. */
  private foldedIn(id: string): string[] | undefined {
    const folded = this.stage.drawing?.boxes.find((box) => box.id === id && box.kind === "fold")?.folded;
    return folded && [...new Set(folded.map((group) => group.replace(/@\d+$/, "")))];
  }

  /** Several that are alike are described by the first, and say so. */
  private ofAll(details: Details): Details {
    const box = this.stage.drawing?.boxes.find((each) => each.id === details.id && each.kind === "fold");
    if (!box) return details;
    const around = details.fqn.slice(0, details.fqn.length - (box.title.split(" … ")[0] ?? "").length);
    return {
      ...details,
      title: `${around}${box.title}`,
      rows: [["alike", `${box.folded.length}, each as follows`], ...details.rows],
    };
  }
}
