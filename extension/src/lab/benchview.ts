import type { Widget } from "@lumino/widgets";

import type { DiagramView } from "../render";
import { sections } from "./benchpage";
import { shown as load } from "./mime";
import type { Diagrams } from "./registry";
import type { SavedBench } from "./saved";
import { element } from "./widgets";

/** A saved bench in a tab or an output: head, live diagram, and everything else as it stood. */
export class BenchView {
  readonly element = element("div", "pbl-bench");

  constructor(
    private readonly host: Widget,
    private readonly diagrams: Diagrams,
    private readonly note: string,
    private readonly open: (() => void) | null,
  ) {}

  /** Shows a bench in the place of what was shown before; the diagram stays where it was. */
  async show(saved: SavedBench): Promise<void> {
    const { shown, graph } = saved;
    this.element.replaceChildren(this.head(shown.title, shown.sentence));
    if (graph !== null) {
      this.diagram ??= this.diagrams.create(this.host);
      const frame = element("div", "pbl-bench-diagram");
      frame.append(this.diagram.element);
      this.element.append(frame);
    }
    this.element.append(...sections(shown));
    if (graph !== null && this.diagram) await load(this.diagram, graph);
  }

  /** Says why there is nothing to show. */
  refuse(reason: unknown): void {
    const note = element("p", "pbl-bench-error", reason instanceof Error ? reason.message : String(reason));
    note.setAttribute("role", "alert");
    this.element.replaceChildren(note);
  }

  private head(title: string, sentence: string): HTMLElement {
    const made = element("header");
    made.append(element("h1", "", title), element("p", "", sentence), element("p", "pbl-bench-note", this.note));
    if (this.open) {
      const button = element("button", "", "Open in a notebook");
      button.type = "button";
      button.addEventListener("click", this.open);
      made.append(button);
    }
    return made;
  }

  private diagram: DiagramView | null = null;
}
