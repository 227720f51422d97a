import type { LivingBench } from "../shared";
import type { Benches, Context } from "./benches";

const QUIET_MS = 1500;

/** An output whose bench has changed since Python was asked last. */
interface Waiting {
  readonly bench: LivingBench;
  /** Until Python is asked; 0 while only saving asks. */
  timer: number;
  isAsked: boolean;
}

/**
 * Keeps benches in their outputs as they stand now, so that a notebook saves what it shows, and not what it showed when
 * its cell ran. Python is asked once nothing has changed for a while, because the answer takes longer than a click may.
 * A document that several people have open carries each writing to all of them and never forgets it: there Python is
 * asked when runs have changed, and for settings when somebody saves.
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
    const context = this.benches.contextOf(key);
    const waiting: Waiting = { bench, timer: 0, isAsked: false };
    if (this.hasNewRuns(bench, key) || !context?.model.collaborative) {
      waiting.timer = window.setTimeout(() => void this.ask(key, waiting), QUIET_MS);
    }
    this.waiting.set(key, waiting);
    this.watch(context);
  }

  /** Whether the runs are others than those that Python was last asked for. */
  private hasNewRuns(bench: LivingBench, key: object): boolean {
    return runsOf(bench) !== (this.kept.get(key) ?? "");
  }

  private async ask(key: object, waiting: Waiting): Promise<void> {
    waiting.isAsked = true;
    this.kept.set(key, runsOf(waiting.bench));
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
        if (!waiting.isAsked) void this.ask(key, waiting);
      }
    });
  }

  private readonly waiting = new Map<object, Waiting>();
  private readonly kept = new WeakMap<object, string>(); // the runs, by output
  private readonly watched = new WeakSet<Context>();
  private readonly saved = new WeakSet<Context>();
}

function runsOf(bench: LivingBench): string {
  return bench.runs.map(({ id, score, p50, error }) => [id, score, p50, error].join(" ")).join("\n");
}
