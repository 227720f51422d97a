/** The workers as objects whose methods return promises. */

import type { Overlay } from "../generated/document";
import type { Assets, Source, TreeRow } from "./api";
import type { View } from "./boxes";
import type { Details } from "./details";
import type { Drawing, Engine, Summary, Trouble } from "./engine";
import type { Hit } from "./search";
import type { SvgElement } from "./svgtree";

interface Reply {
  id: number;
  result?: unknown;
  error?: string;
}
interface Waiting {
  resolve: (value: unknown) => void;
  reject: (error: Error) => void;
}

/** A worker that answers messages by number. */
class Caller {
  private readonly waiting = new Map<number, Waiting>();
  private next = 0;

  constructor(readonly worker: Worker) {
    worker.onmessage = (event: MessageEvent<Reply>) => {
      const { id, result, error } = event.data;
      const call = this.waiting.get(id);
      this.waiting.delete(id);
      if (error === undefined) call?.resolve(result);
      else call?.reject(new Error(error));
    };
    worker.onerror = (event) => {
      event.preventDefault();
      this.end(
        new Error(
          `A worker of the diagram could not run${event.message ? `: ${event.message}` : ""}. Reload the page.`,
        ),
      );
    };
  }

  call(message: object): Promise<unknown> {
    const id = this.next++;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, ...message });
    });
  }

  end(error: Error): void {
    for (const call of this.waiting.values()) call.reject(error);
    this.close();
  }

  /** Ends without an answer to what was asked: nobody is there to hear it. */
  close(): void {
    this.worker.terminate();
    this.waiting.clear();
  }
}

/** The engine in its worker. */
export class EngineClient {
  private readonly caller: Caller;

  constructor(assets: Assets) {
    this.caller = new Caller(assets.engine());
  }

  load(source: Source): Promise<Summary> {
    return this.ask("load", source);
  }
  setOverlays(overlays: Overlay[]): Promise<Summary> {
    return this.ask("setOverlays", overlays);
  }
  text(): Promise<string> {
    return this.ask("text");
  }
  draw(part: number, view: View, overlay: string): Promise<Drawing> {
    return this.ask("draw", part, view, overlay);
  }
  details(part: number, ids: string[]): Promise<Details[]> {
    return this.ask("details", part, ids);
  }
  search(part: number, query: string): Promise<Hit[]> {
    return this.ask("search", part, query);
  }
  tree(part: number): Promise<TreeRow[]> {
    return this.ask("tree", part);
  }
  troubles(part: number): Promise<Trouble[]> {
    return this.ask("troubles", part);
  }
  findings(part: number): Promise<string[]> {
    return this.ask("findings", part);
  }
  toggle(part: number, view: View, id: string): Promise<View> {
    return this.ask("toggle", part, view, id);
  }
  unfold(part: number, view: View, id: string): Promise<View> {
    return this.ask("unfold", part, view, id);
  }
  openMore(part: number, view: View, below: string, levels: number, limit: number): Promise<View> {
    return this.ask("openMore", part, view, below, levels, limit);
  }
  toDepth(part: number, view: View, depth: number): Promise<View> {
    return this.ask("toDepth", part, view, depth);
  }
  reveal(part: number, view: View, name: string): Promise<{ view: View; id: string } | null> {
    return this.ask("reveal", part, view, name);
  }
  boxesOf(part: number, view: View, names: string[]): Promise<string[]> {
    return this.ask("boxesOf", part, view, names);
  }
  visibleOf(part: number, view: View, ids: string[]): Promise<string[]> {
    return this.ask("visibleOf", part, view, ids);
  }
  dispose(): void {
    this.caller.close();
  }

  private ask<T>(method: keyof Engine, ...args: unknown[]): Promise<T> {
    return this.caller.call({ method, args }) as Promise<T>;
  }
}

/** Thrown when a newer request made a layout useless. */
export class Cancelled extends Error {}

/** Thrown when a layout took longer than it may. */
export class TooSlow extends Error {}

/** Graphviz in its worker; a layout that is cancelled or takes too long ends with its worker. */
export class Layouter {
  private caller: Promise<Caller> | null = null;
  private running: ((error: Error) => void) | null = null;

  constructor(private readonly assets: Assets) {}

  /** Starts Graphviz, so that the first layout need not wait for it. */
  start(): Promise<Caller> {
    this.caller ??= Promise.resolve(this.assets.layout()).then(async (worker) => {
      const caller = new Caller(worker);
      await caller.call({ dot: "digraph { }" });
      return caller;
    });
    return this.caller;
  }

  /** The picture of a DOT source; cancels a layout that is still running. */
  async layout(dot: string, milliseconds: number): Promise<SvgElement> {
    this.cancel();
    const caller = await this.start();
    return new Promise<SvgElement>((resolve, reject) => {
      const timer = setTimeout(
        () => fail(new TooSlow(`The layout took longer than ${milliseconds / 1000} s and was stopped.`)),
        milliseconds,
      );
      const done = (act: () => void): void => {
        clearTimeout(timer);
        if (this.running === fail) this.running = null;
        act();
      };
      const fail = (error: Error): void =>
        done(() => {
          caller.end(error);
          this.caller = null;
          this.start().catch(() => undefined); // told when the next layout waits for it
          reject(error);
        });
      this.running = fail;
      caller.call({ dot }).then(
        (svg) => done(() => resolve(svg as SvgElement)),
        (error: Error) => done(() => reject(error)),
      );
    });
  }

  cancel(): void {
    this.running?.(new Cancelled("A newer view was asked for."));
  }

  dispose(): void {
    this.caller?.then(
      (caller) => caller.close(),
      () => undefined, // it could not start, which was told
    );
    this.caller = null;
  }
}
