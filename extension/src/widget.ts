/** The diagram in a notebook of any kind, joined to its Python object. */

import engine from "engine-script";
import { unzipped, workerOf } from "./blobs";
import type { Overlay } from "./generated/document";
import type { DiagramActions } from "./generated/widgets";
import { saveChanges } from "./kept";
import { lose, lostNote } from "./lost";
import { type Assets, createDiagram, type View } from "./render";
import { make } from "./render/dom";
import { sharedNow } from "./shared";

interface State {
  data: DataView;
  selected: string[];
  view: Partial<View>;
  overlay: string;
  overlay_data: DataView;
  height: string;
  newer: string;
}

interface Model {
  get<K extends keyof State>(name: K): State[K];
  set<K extends keyof State>(name: K, value: State[K]): void;
  save_changes(): void;
  on(event: string, callback: (...given: never[]) => void): void;
  off(event: string, callback: (...given: never[]) => void): void;
  send(content: Record<string, unknown>): void;
}

/** Asks Python for something that comes as bytes. */
function ask<K extends keyof DiagramActions>(
  model: Model,
  action: K,
  content: DiagramActions[K],
  patience = 30_000,
): Promise<Uint8Array> {
  return new Promise((resolve, reject) => {
    const answered = (message: { action?: string; error?: string }, buffers: DataView[]): void => {
      if (message.action !== action) return;
      clearTimeout(timer);
      model.off("msg:custom", answered as never);
      const data = buffers[0];
      if (message.error) reject(new Error(message.error));
      else resolve(data ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array());
    };
    const timer = setTimeout(() => {
      model.off("msg:custom", answered as never);
      reject(new Error("The kernel did not send the layout engine. Is it busy or gone? Run the cell again."));
    }, patience);
    model.on("msg:custom", answered as never);
    try {
      model.send({ action, ...content });
    } catch {
      clearTimeout(timer);
      model.off("msg:custom", answered as never);
      reject(new Error("The kernel of this diagram is gone. Run the cell again."));
    }
  });
}

const LOST =
  "The kernel of this diagram was restarted or has ended, so Python no longer hears of what is selected here. The diagram " +
  "itself still works. Run the cell again to use it from Python.";

/** A line that says that the code is newer, with the button that captures again; empty while it is not. */
function newerNote(model: Model, ends: (() => void)[]): HTMLElement {
  const note = make("p", { class: "pbd-newer", role: "status" });
  const again = async (): Promise<void> => {
    note.replaceChildren("Capturing again …");
    try {
      await ask(model, "again", {}, 600_000);
    } catch (error) {
      show(error instanceof Error ? error.message : String(error));
    }
  };
  const show = (error = ""): void => {
    const text = model.get("newer");
    const button = make("button", { click: () => void again() }, "Capture again");
    note.replaceChildren(...(text ? [error || text, " ", button] : []));
  };
  const changed = (): void => show();
  model.on("change:newer", changed);
  ends.push(() => model.off("change:newer", changed));
  show();
  return note;
}

function assetsOf(model: Model): Assets {
  const shared = sharedNow();
  const page = async (source: string): Promise<string> =>
    new TextDecoder().decode(await ask(model, "page", { document: source }));
  if (shared.assets) return { ...shared.assets, page };
  return {
    engine: () => workerOf(engine),
    layout: async () => {
      shared.layout ??= ask(model, "layout", {}).then(unzipped);
      shared.layout.catch(() => delete shared.layout);
      return workerOf(await shared.layout);
    },
    page,
  };
}

/** The overlays, which come packed. */
async function overlaysOf(model: Model): Promise<Overlay[]> {
  const data = model.get("overlay_data");
  if (!data.byteLength) return [];
  return JSON.parse(await unzipped(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)));
}

function same(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const diagram = createDiagram(assetsOf(model));
  const ends: (() => void)[] = [];
  const leave = sharedNow().adopt?.(diagram, () => lose(model));
  el.classList.add("pbd-host");
  diagram.element.style.height = model.get("height");
  el.append(lostNote(model, LOST, "pbd-lost", ends), newerNote(model, ends), diagram.element);
  const keep = <K extends "selected" | "view" | "overlay">(name: K, value: State[K]): void => {
    if (same(model.get(name), value)) return;
    model.set(name, value);
    if (!saveChanges(model)) lose(model);
  };
  const colour = async (): Promise<void> => {
    const data = model.get("overlay_data");
    const overlays = await overlaysOf(model);
    if (model.get("overlay_data") === data) await diagram.setOverlays(overlays, model.get("overlay"));
  };
  const listeners: [string, () => void][] = [
    [
      "change:selected",
      () => same(model.get("selected"), diagram.selected) || void diagram.select(model.get("selected")),
    ],
    ["change:view", () => same(model.get("view"), diagram.view) || void diagram.show(model.get("view"))],
    ["change:overlay", () => model.get("overlay") === diagram.overlay || void diagram.colourBy(model.get("overlay"))],
    ["change:overlay_data", () => void colour()],
    ["change:data", () => void load()],
    [
      "change:height",
      () => {
        diagram.element.style.height = model.get("height");
      },
    ],
  ];
  let loading = 0;
  const tell = (): void => {
    if (loading) return; // a new document has no colours yet, and those of Python would be lost
    if (diagram.view) keep("view", diagram.view);
    keep("overlay", diagram.overlay);
  };
  for (const [event, callback] of listeners) model.on(event, callback as never);
  const read = async (): Promise<void> => {
    const data = model.get("data");
    const view = model.get("view"); // the first view of a new document would take its place
    await diagram.load(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), true);
    if (model.get("overlay_data").byteLength) await colour();
    if (Object.keys(view).length && !same(view, diagram.view)) await diagram.show(view);
    if (model.get("selected").length) await diagram.select(model.get("selected"));
  };
  const load = async (): Promise<void> => {
    loading += 1;
    try {
      await read();
    } finally {
      loading -= 1;
      if (!loading) diagram.settle();
    }
    tell();
  };
  void load().then(() => {
    diagram.onSelect((fqns) => keep("selected", [...fqns])); // only now: what Python has set comes first
    diagram.onView(tell);
    tell();
  });
  return () => {
    for (const [event, callback] of listeners) model.off(event, callback as never);
    for (const end of ends) end();
    diagram.dispose();
    leave?.();
  };
}

export default { render };
