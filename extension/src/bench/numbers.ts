/** Numbers and times as people read them. */

import { fill, fills } from "../generated/formats.json";

/** Three digits that count; a true zero is "0", what is unknown "–". */
export function shortNumber(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size >= 1e9) return `${cut(value / 1e9)} G`;
  if (size >= 1e6) return `${cut(value / 1e6)} M`;
  if (size >= 1e3) return `${cut(value / 1e3)} k`;
  return size < 1e-3 ? value.toExponential(2) : cut(value);
}

function cut(value: number): string {
  return String(Number(value.toPrecision(3)));
}

/** E.g. `8 s`, `1 min 20 s`. */
export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export function counted(count: number, noun: string): string {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

const FILL: Record<string, string> = fill;

/** The class of a precision's colour: of the fewest bits among the formats and numbers of bits in its words. */
export function fillOf(label: string): string {
  const found = (label.match(/[a-z]+\d+|\d+(?=[ -]?bit)/g) ?? []).map((word) => FILL[word]);
  return fills[Math.max(0, ...found.map((name) => fills.indexOf(name ?? "")))]!;
}
