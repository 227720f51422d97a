/** Tells Python whether somebody sees the bench: what others write to its journal shows only then. */

import type { Cleanups } from "./live";
import { act, type BenchModel } from "./model";

const PATIENCE_MS = 400; // of who scrolls by

export function tellSight(model: BenchModel, box: HTMLElement, ends: Cleanups): void {
  let inView = false;
  let told = false;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const tell = (shown: boolean): void => {
    if (shown === told) return;
    told = shown;
    act(model, "shown", { shown });
  };
  const soon = (): void => {
    clearTimeout(timer);
    timer = setTimeout(() => tell(inView && document.visibilityState === "visible"), PATIENCE_MS);
  };
  const observer = new IntersectionObserver((entries) => {
    inView = entries.at(-1)?.isIntersecting ?? false;
    soon();
  });
  const leave = (): void => tell(false);
  observer.observe(box);
  document.addEventListener("visibilitychange", soon);
  addEventListener("pagehide", leave);
  ends.push(() => {
    observer.disconnect();
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", soon);
    removeEventListener("pagehide", leave);
    tell(false);
  });
}
