/** What keys and buttons change about the view of a stage. */

import { copyText } from "./dom";
import type { Selection } from "./selection";
import type { Stage } from "./stage";

export class Commands {
  constructor(
    private readonly stage: Stage,
    private readonly selection: Selection,
    private readonly say: (text: string) => void,
  ) {}

  /** So many levels more, of the whole model or, if several, below the selection. */
  async openMore(levels: number): Promise<void> {
    const { host, part, shown, active, limit } = this.stage;
    await this.stage.show(await host.engine.openMore(part, shown, levels > 1 ? active : "", levels, limit));
  }

  async closeAll(): Promise<void> {
    await this.stage.show({ ...this.stage.view, open: [], depth: 0, unfolded: [] });
    this.stage.canvas.firstView();
  }

  async toDepth(depth: number): Promise<void> {
    const { host, part, view } = this.stage;
    await this.stage.show(await host.engine.toDepth(part, view, depth));
  }

  async unfold(): Promise<void> {
    const { host, part, shown, active } = this.stage;
    if (active) await this.stage.show(await host.engine.unfold(part, shown, active));
  }

  async undo(): Promise<void> {
    if (!(await this.stage.undo())) this.say("Nothing to undo");
  }

  async focusOn(group: string): Promise<void> {
    await this.stage.show({ ...this.stage.view, root: group, around: "" });
  }

  async focusOnSelection(): Promise<void> {
    const group = this.selection.details[0]?.group;
    if (group) await this.focusOn(group);
  }

  async neighbourhood(): Promise<void> {
    const { view, active } = this.stage;
    if (active) await this.stage.show({ ...view, around: active });
  }

  async hops(step: number): Promise<void> {
    const { view } = this.stage;
    await this.stage.show({ ...view, hops: Math.max(1, Math.min(9, view.hops + step)) });
  }

  async backToAll(): Promise<void> {
    const { view } = this.stage;
    if (view.root || view.around) await this.stage.show({ ...view, root: "", around: "" });
  }

  openSource(): void {
    const source = this.selection.details[0]?.source;
    if (source) this.stage.host.options.openSource?.(source.file, source.line, source.code);
  }

  async copyNames(): Promise<void> {
    const names = this.selection.names.filter(Boolean);
    if (!names.length) {
      const selected = this.selection.ids.length > 0;
      this.say(selected ? "It belongs to no module: there is no name to copy" : "Nothing is selected");
      return;
    }
    await copyText(names.join("\n"));
    this.say(`Copied ${names.length > 1 ? `${names.length} names` : names[0]}`);
  }
}
