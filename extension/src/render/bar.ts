/** What stands above and below a picture: the bar, the way to what is shown, the legend. */

import palette from "../generated/palette.json";
import type { View } from "./boxes";
import { button, make } from "./dom";
import type { Drawing, Summary } from "./engine";

const MARKS = { ...palette.status, reused: palette.reused, ...palette.changes } as Record<
  string,
  { glyph: string; word: string }
>;

export type SaveKind = "svg" | "png" | "html";

/** What the buttons of the bar do. */
export interface BarActions {
  find(): void;
  searchKey(event: KeyboardEvent): void;
  nextHit(step: number): void;
  overlaid(name: string): void;
  undo(): void;
  openMore(): void;
  closeAll(): void;
  zoomIn(): void;
  zoomOut(): void;
  fit(): void;
  help(): void;
  save(kind: SaveKind): void;
}

export interface Bar {
  element: HTMLElement;
  levels: HTMLElement;
  search: HTMLInputElement;
  /** How much the search found. */
  count: HTMLElement;
  /** What was just done. */
  status: HTMLElement;
  overlays: HTMLSelectElement;
}

/** The word for a state, e.g. "failed". */
export function wordOf(status: string): string {
  return MARKS[status]?.word ?? status;
}

/** The bar above a picture; `pages` tells whether it can be saved as HTML. */
export function makeBar(actions: BarActions, pages: boolean): Bar {
  const small = (name: string, sign: string, act: () => void, kind = ""): HTMLButtonElement =>
    button(name, sign, act, `pbd-icon ${kind}`);
  const levels = make("span", { class: "pbd-levels", role: "group", "aria-label": "level" });
  const search = make("input", {
    type: "search",
    placeholder: "Find a layer",
    title: "Find by name, type, operator or status (/)",
    "aria-label": "find by name, type, operator or status",
    input: () => actions.find(),
    keydown: (event: KeyboardEvent) => actions.searchKey(event),
  });
  const count = make("span", { class: "pbd-count", role: "status" });
  const status = make("span", { class: "pbd-status", role: "status" });
  const overlays = make("select", {
    "aria-label": "colour by",
    title: "Colour by (V)",
    change: () => actions.overlaid(overlays.value),
  });
  const element = make(
    "div",
    { class: "pbd-bar", role: "toolbar", "aria-label": "diagram" },
    levels,
    search,
    count,
    small("Previous found (Shift+Enter)", "‹", () => actions.nextHit(-1), "pbd-wide"),
    small("Next found (Enter)", "›", () => actions.nextHit(1), "pbd-wide"),
    status,
    make("span", { class: "pbd-grow" }),
    overlays,
    small("Undo (U)", "↶", () => actions.undo()),
    small("Open one level more (O)", "⊞", () => actions.openMore()),
    small("Close all modules (X)", "⊟", () => actions.closeAll()),
    small("Zoom out (−)", "−", () => actions.zoomOut(), "pbd-wide"),
    small("Zoom in (+)", "+", () => actions.zoomIn(), "pbd-wide"),
    small("Fit (0)", "⤢", () => actions.fit()),
    saveMenu(actions, pages ? ["svg", "png", "html"] : ["svg", "png"]),
    small("Keys (?)", "?", () => actions.help()),
  );
  return { element, levels, search, count, status, overlays };
}

function saveMenu(actions: BarActions, kinds: SaveKind[]): HTMLElement {
  const choose = (kind: SaveKind): void => {
    menu.removeAttribute("open");
    actions.save(kind);
  };
  const choices = kinds.map((kind) => make("button", { click: () => choose(kind) }, `Save as ${kind.toUpperCase()}`));
  const menu = make(
    "details",
    { class: "pbd-menu" },
    make("summary", { title: "Save the picture", "aria-label": "save the picture" }, "⤓"),
    make("div", { class: "pbd-menu-list" }, ...choices),
  );
  return menu;
}

/** Puts names, levels and overlays into a bar. */
export function fillBar(
  bar: Bar,
  { documents, overlays }: Summary,
  part: number,
  switchable: readonly number[],
  overlay: string,
  switchTo: (part: number) => void,
): void {
  const current = documents[part]!;
  const buttons = switchable.map((each) =>
    make("button", { "aria-pressed": each === part, click: () => switchTo(each) }, documents[each]!.title),
  );
  bar.levels.replaceChildren(
    make("strong", {}, current.model),
    " ",
    ...(buttons.length > 1 ? buttons : [make("span", { class: "pbd-dim" }, current.title)]),
  );
  bar.overlays.hidden = !overlays.length;
  bar.overlays.replaceChildren(
    make("option", { value: "" }, "No overlay"),
    ...overlays.map((name) => make("option", { value: name }, name)),
  );
  bar.overlays.value = overlay;
}

/** The states that are visible, each a button that shows only them, and the scale of the overlay. */
export function legendOf(
  drawing: Drawing,
  filter: ReadonlySet<string>,
  overlay: string,
  toggle: (status: string) => void,
): Node[] {
  const seen = (test: (box: Drawing["boxes"][number]) => boolean): number => drawing.boxes.filter(test).length;
  const further = [
    ["reused", seen((box) => box.calls !== "")] as [string, number],
    ...Object.keys(palette.changes).map((change): [string, number] => [change, seen((box) => box.change === change)]),
  ];
  const rows = [...drawing.counts, ...further.filter(([, count]) => count)].map(([status, count]) => {
    const { glyph, word } = MARKS[status]!;
    return make(
      "button",
      {
        class: `pbd-key pbd-is-${status}`,
        "aria-pressed": filter.has(status),
        title: `Show ${word} only`,
        click: () => toggle(status),
      },
      make("b", {}, glyph),
      ` ${count} ${word}`,
    );
  });
  const sizes = sizesOf(drawing);
  if (!drawing.legend.length) return [...rows, ...sizes];
  const swatches = drawing.legend.map((swatch) =>
    make("span", { class: "pbd-swatch" }, make("i", { class: swatch.style }), swatch.text),
  );
  return [
    ...rows,
    ...sizes,
    make(
      "span",
      { class: "pbd-scale", title: drawing.rule },
      make("b", {}, overlay),
      ...swatches,
      make("span", { class: "pbd-dim" }, drawing.rule),
    ),
  ];
}

/** What the names in the visible shapes stand for. */
function sizesOf({ sizes }: Drawing): Node[] {
  if (!sizes.length) return [];
  const rows = sizes.map(({ name, meaning }) =>
    make("span", { class: "pbd-size" }, make("b", {}, name), ` = ${meaning}`),
  );
  return [make("span", { class: "pbd-sizes", "aria-label": "sizes" }, ...rows)];
}

export interface CrumbActions {
  all(): void;
  root(group: string): void;
  reveal(group: string): void;
  hops(step: number): void;
}

/** Where the shown part or, in the whole model, the selection lies. */
export function crumbsOf(
  model: string,
  { root, around, hops }: View,
  selected: string,
  actions: CrumbActions,
): (Node | string)[] {
  const only = root !== "" || around !== "";
  const names = (only ? root : selected).replace(/#.*$/, "").split(".").filter(Boolean);
  const parts: (Node | string)[] = [
    make(
      "button",
      {
        class: "pbd-link",
        title: only ? "Back to the whole model (B)" : "",
        click: () => actions.all(),
      },
      model,
    ),
  ];
  names.forEach((name, i) => {
    const group = names.slice(0, i + 1).join(".");
    parts.push(
      " › ",
      make(
        "button",
        {
          class: "pbd-link",
          "aria-current": i === names.length - 1,
          click: () => (only ? actions.root(group) : actions.reveal(group)),
        },
        name,
      ),
    );
  });
  if (only)
    parts.push(make("span", { class: "pbd-dim" }, around ? ` only around the selection, ${hops} steps ` : " only"));
  if (around)
    parts.push(
      make("button", { "aria-label": "fewer steps", click: () => actions.hops(-1) }, "−"),
      make("button", { "aria-label": "more steps", click: () => actions.hops(1) }, "+"),
    );
  return parts;
}
