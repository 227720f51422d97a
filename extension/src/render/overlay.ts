/** Overlays: what colour and text each visible box gets, and the legend that explains it. */

import type { Overlay } from "../generated/document";
import palette from "../generated/palette.json";
import { allBoxes, type Box, type Scene } from "./boxes";
import type { Painted } from "./dot";
import type { Lookup } from "./lookup";

/** A row of the overlay's legend: the class that colours it, and its text. */
export interface Swatch {
  style: string;
  text: string;
}

export interface Paint {
  boxes: Map<string, Painted>;
  legend: Swatch[];
  /** How closed modules get their value, in words. */
  rule: string;
}

const RULES = { sum: "sum", mean: "mean", max: "largest value", min: "smallest value" };

/** Values by module, with what lies in it combined. */
export class OverlayValues {
  private readonly own = new Map<string, number | string>();
  private readonly combined = new Map<string, number | string | null>();

  constructor(
    readonly overlay: Overlay,
    private readonly lookup: Lookup,
  ) {
    for (const value of overlay.values) {
      const given = overlay.kind === "number" ? value.number : value.text;
      if (given !== null && given !== "") this.own.set(value.fqn, given);
    }
  }

  /** The value of a module: its own, else that of what lies in it. */
  of(fqn: string): number | string | null {
    const own = this.own.get(fqn);
    if (own !== undefined) return own;
    let found = this.combined.get(fqn);
    if (found === undefined) {
      const prefix = fqn ? `${fqn}.` : "";
      const inner = [...this.own]
        .filter(([name]) => name.startsWith(prefix) && !this.hasOwnAbove(name, fqn))
        .map(([, value]) => value);
      found = this.combine(inner);
      this.combined.set(fqn, found);
    }
    return found;
  }

  exact(fqn: string): number | string | null {
    return this.own.get(fqn) ?? null;
  }

  combine(values: (number | string)[]): number | string | null {
    if (!values.length) return null;
    if (this.overlay.kind !== "number") return shares(values as string[]);
    const numbers = values as number[];
    if (this.overlay.combine === "max") return numbers.reduce((a, b) => Math.max(a, b));
    if (this.overlay.combine === "min") return numbers.reduce((a, b) => Math.min(a, b));
    const sum = numbers.reduce((a, b) => a + b, 0);
    return this.overlay.combine === "mean" ? sum / numbers.length : sum;
  }

  /** What keeps groups apart that are alike otherwise. */
  category(group: string): string {
    return this.overlay.kind === "number" ? "" : String(this.of(this.lookup.groups.get(group)!.fqn) ?? "");
  }

  private hasOwnAbove(name: string, below: string): boolean {
    for (let at = name.lastIndexOf("."); at > below.length; at = name.lastIndexOf(".", at - 1))
      if (this.own.has(name.slice(0, at))) return true;
    return false;
  }
}

function shares(values: string[]): string {
  const counts = new Map<string, number>();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  if (counts.size === 1) return values[0]!;
  const [most, count] = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))[0]!;
  return `${most} ${Math.round((100 * count) / values.length)} %`;
}

/** Colours and texts of the visible boxes. */
export function paint(scene: Scene, values: OverlayValues, lookup: Lookup): Paint {
  const found = new Map<string, number | string>();
  for (const box of allBoxes(scene.root)) {
    const value = overlayValue(box, values, lookup);
    if (value !== null) found.set(box.id, value);
  }
  return values.overlay.kind === "number"
    ? paintNumbers(found as Map<string, number>, values.overlay)
    : paintTexts(found as Map<string, string>, values.overlay);
}

function overlayValue(box: Box, values: OverlayValues, lookup: Lookup): number | string | null {
  if (box.kind === "fold") {
    const inner = [...new Set(box.folded.map((group) => lookup.groups.get(group)!.fqn))]
      .map((fqn) => values.of(fqn))
      .filter((value) => value !== null);
    return values.combine(inner);
  }
  if (box.kind === "module") return values.of(box.fqn);
  return box.kind === "node" ? values.exact(box.fqn) : null;
}

function paintNumbers(found: Map<string, number>, overlay: Overlay): Paint {
  const numbers = [...found.values()];
  let [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  if (overlay.diverging)
    [low, high] = [-Math.max(Math.abs(low), Math.abs(high)), Math.max(Math.abs(low), Math.abs(high))];
  const steps = palette.ramp;
  const scale = overlay.diverging ? "diverging" : "ramp";
  const step = (value: number): number =>
    high > low
      ? Math.min(steps - 1, Math.floor((steps * (value - low)) / (high - low)))
      : overlay.diverging
        ? (steps - 1) / 2
        : steps - 1;
  const boxes = new Map<string, Painted>();
  for (const [id, value] of found)
    boxes.set(id, { text: withUnit(value, overlay.unit), style: `pb-${scale}-${step(value)}` });
  const legend = !numbers.length
    ? []
    : high > low
      ? Array.from({ length: steps }, (_, i) => ({
          style: `pb-${scale}-${i}`,
          text: i === 0 ? withUnit(low, overlay.unit) : i === steps - 1 ? withUnit(high, overlay.unit) : "",
        }))
      : [{ style: `pb-${scale}-${step(high)}`, text: withUnit(high, overlay.unit) }];
  return { boxes, legend, rule: `A closed module shows the ${RULES[overlay.combine]} of its layers` };
}

function paintTexts(found: Map<string, string>, overlay: Overlay): Paint {
  const plain = (text: string): string => text.replace(/ \d+ %$/, "");
  const known = overlay.kind === "precision" ? Object.keys(palette.precision) : [];
  const precision = (text: string): string | undefined =>
    known.find((each) => text === each || text.startsWith(`${each} `));
  const others = [
    ...new Set(overlay.values.map((value) => value.text).filter((text) => text && !known.includes(text))),
  ].sort();
  const style = (text: string): string =>
    precision(text)
      ? `pb-precision-${precision(text)}`
      : `pb-category-${Math.min(others.indexOf(text), palette.categories - 1)}`;
  const boxes = new Map<string, Painted>();
  const present = new Set<string>();
  for (const [id, text] of found) {
    present.add(plain(text));
    boxes.set(id, { text, style: style(plain(text)) });
  }
  const legend = [...known, ...others]
    .filter((text) => present.has(text))
    .map((text) => ({ style: style(text), text }));
  const what = overlay.kind === "precision" ? "the precision of" : "what holds for";
  return { boxes, legend, rule: `A closed module shows ${what} most of its layers` };
}

/** A number with three digits that matter, and its unit. */
export function withUnit(value: number, unit: string): string {
  const size = Math.abs(value);
  const text = size >= 1e6 || (size > 0 && size < 1e-3) ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  return unit ? `${text} ${unit}` : text;
}
