import type { LivingBench } from "../shared";
import type { Benches, Context } from "./benches";

const QUIET_MS = 1500;

/** An output whose bench has changed since Python was asked last. */
interface Waiting {
  readonly bench: LivingBench;
  /** Until Python is asked; 0 once it was. */
  timer: number;
}

/**
 * Keeps benches in their outputs as they stand now, so that a notebook saves what it shows, and not what it showed when
 * its cell ran. Python is asked once nothing has changed for a while, because the answer takes longer than a click may.
 */
export class Keeper {
  isOn = true;

  constructor(private readonly benches: Benches) {
    benches.changed.connect((_, bench) => {
      if (this.isOn) queueMicrotask(() => this.changed(bench)); // a new one is not in its place yet
    });
  }

  private changed(bench: LivingBench): void {
    const key = this.benches.has(bench) ? this.benches.outputOf(bench.element)?.key : null;
    if (!key) return;
    window.clearTimeout(this.waiting.get(key)?.timer);
    const waiting = { bench, timer: window.setTimeout(() => void this.ask(key, waiting), QUIET_MS) };
    this.waiting.set(key, waiting);
    this.watch(this.benches.contextOf(key));
  }

  private async ask(key: object, waiting: Waiting): Promise<void> {
    waiting.timer = 0;
    try {
      const still = await waiting.bench.still();
      const context = this.benches.contextOf(key);
      const again = context !== null && this.saved.delete(context) && !context.model.dirty;
      this.benches.outputsOf(key)[0]?.keep(still);
      if (again && context.model.dirty) void context.save();
    } catch (reason) {
      console.warn("A bench could not be kept in its output.", reason);
    } finally {
      if (this.waiting.get(key) === waiting) this.waiting.delete(key);
    }
  }

  /** Who saves before the answer is there saves once more with it. */
  private watch(context: Context | null): void {
    if (!context || this.watched.has(context)) return;
    this.watched.add(context);
    context.saveState.connect((_, state) => {
      if (state !== "completed") return;
      for (const [key, waiting] of this.waiting) {
        if (this.benches.contextOf(key) !== context) continue;
        this.saved.add(context);
        window.clearTimeout(waiting.timer);
        if (waiting.timer) void this.ask(key, waiting);
      }
    });
  }

  private readonly waiting = new Map<object, Waiting>();
  private readonly watched = new WeakSet<Context>();
  private readonly saved = new WeakSet<Context>();
}
