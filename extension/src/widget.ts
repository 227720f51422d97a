/** The diagram in a notebook of any kind, joined to its Python object. */

import engine from "engine-script";
import { unzipped, workerOf } from "./blobs";
import type { Overlay } from "./generated/document";
import type { DiagramActions } from "./generated/widgets";
import { saveChanges } from "./kept";
import { type Assets, createDiagram, type View } from "./render";
import { sharedNow } from "./shared";

interface State {
  data: DataView;
  selected: string[];
  view: Partial<View>;
  overlay: string;
  overlay_data: DataView;
  height: string;
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
function ask<K extends keyof DiagramActions>(model: Model, action: K, content: DiagramActions[K]): Promise<Uint8Array> {
  return new Promise((resolve, reject) => {
    const answered = (message: { action?: string; error?: string }, buffers: DataView[]): void => {
      if (message.action !== action) return;
      clearTimeout(timer);
      model.off("msg:custom", answered as never);
      const data = buffers[0];
      if (data) resolve(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
      else reject(new Error(message.error ?? "Python sent no answer."));
    };
    const timer = setTimeout(() => {
      model.off("msg:custom", answered as never);
      reject(new Error("The kernel did not send the layout engine. Is it busy or gone? Run the cell again."));
    }, 30_000);
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
  const leave = sharedNow().adopt?.(diagram);
  el.classList.add("pbd-host");
  diagram.element.style.height = model.get("height");
  el.append(diagram.element);
  const keep = <K extends "selected" | "view" | "overlay">(name: K, value: State[K]): void => {
    if (same(model.get(name), value)) return;
    model.set(name, value);
    saveChanges(model);
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
    [
      "change:height",
      () => {
        diagram.element.style.height = model.get("height");
      },
    ],
  ];
  const tell = (): void => {
    if (diagram.view) keep("view", diagram.view);
    keep("overlay", diagram.overlay);
  };
  for (const [event, callback] of listeners) model.on(event, callback as never);
  const data = model.get("data");
  void diagram.load(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)).then(async () => {
    const view = model.get("view");
    if (model.get("overlay_data").byteLength) await colour();
    if (Object.keys(view).length && !same(view, diagram.view)) await diagram.show(view);
    if (model.get("selected").length) await diagram.select(model.get("selected"));
    diagram.onSelect((fqns) => keep("selected", [...fqns])); // only now: what Python has set comes first
    diagram.onView(tell);
    tell();
  });
  return () => {
    for (const [event, callback] of listeners) model.off(event, callback as never);
    diagram.dispose();
    leave?.();
  };
}

export default { render };
