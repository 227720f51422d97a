/** What each key does in a diagram; `help.ts` tells people. */

import type { Commands } from "./commands";
import type { Direction, Selection } from "./selection";
import type { Stage } from "./stage";

/** What the keys act on. */
export interface KeyTarget {
  readonly stage: Stage;
  readonly selection: Selection;
  readonly commands: Commands;
  search(): void;
  help(): void;
  nextTrouble(status: string): Promise<void>;
  nextOverlay(): void;
  nextPart(): Promise<void>;
  /** Shows all that the selection depends on and feeds, or only its neighbours again. */
  trace(): void;
  clear(): void;
}

const ARROWS: Record<string, Direction> = {
  ArrowUp: "up",
  ArrowDown: "down",
  ArrowLeft: "left",
  ArrowRight: "right",
};

const ACTIONS: Record<string, (on: KeyTarget) => unknown> = {
  Enter: ({ stage, selection }) => stage.active && selection.toggle(stage.active),
  " ": ({ stage, selection }) => selection.pin(stage.active),
  Home: ({ selection }) => selection.moveTo(selection.ordered[0]),
  End: ({ selection }) => selection.moveTo(selection.ordered.at(-1)),
  "/": (on) => on.search(),
  "?": (on) => on.help(),
  f: (on) => on.nextTrouble("failed"),
  l: (on) => on.nextTrouble("leaf"),
  o: ({ commands }) => commands.openMore(1),
  a: ({ commands }) => commands.openMore(99),
  x: ({ commands }) => commands.closeAll(),
  r: ({ commands }) => commands.unfold(),
  ".": ({ commands }) => commands.focusOnSelection(),
  n: ({ commands }) => commands.neighbourhood(),
  h: (on) => on.trace(),
  b: ({ commands }) => commands.backToAll(),
  u: ({ commands }) => commands.undo(),
  v: (on) => on.nextOverlay(),
  g: (on) => on.nextPart(),
  c: ({ commands }) => commands.copyNames(),
  s: ({ commands }) => commands.openSource(),
  m: ({ stage }) => stage.canvas.toggleMap(),
  "+": ({ stage }) => stage.canvas.zoomIn(),
  "=": ({ stage }) => stage.canvas.zoomIn(),
  "-": ({ stage }) => stage.canvas.zoomOut(),
  "0": ({ stage }) => stage.canvas.fit(),
  Escape: (on) => on.clear(),
};

/** Handles a key that was pressed inside a diagram; other keys, and keys of its controls, are left alone. */
export function pressed(event: KeyboardEvent, on: KeyTarget): void {
  const commands = event.ctrlKey || event.metaKey || event.altKey;
  if (!commands) event.stopPropagation(); // the page's shortcuts must not run while the diagram has the focus
  if (isForControl(event)) return;
  const isUndo = commands && event.key.toLowerCase() === "z";
  if (commands && !isUndo) return;
  const action = isUndo ? ACTIONS.u : actionOf(event);
  if (!action) return;
  event.preventDefault();
  event.stopPropagation();
  action(on);
}

function isForControl({ key, target }: KeyboardEvent): boolean {
  if (target instanceof HTMLInputElement || target instanceof HTMLSelectElement) return true;
  if ((target as Element).closest(".pbd-help, summary")) return true;
  return target instanceof HTMLButtonElement && (key === "Enter" || key === " " || key === "Escape");
}

function actionOf({ key, shiftKey }: KeyboardEvent): ((on: KeyTarget) => unknown) | undefined {
  const arrow = ARROWS[key];
  if (arrow) return ({ selection }) => selection.move(arrow, shiftKey);
  if (/^[1-9]$/.test(key)) return ({ commands }) => commands.toDepth(Number(key));
  return ACTIONS[key.length === 1 ? key.toLowerCase() : key];
}
