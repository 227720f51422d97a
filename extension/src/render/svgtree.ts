/** Graphviz's SVG as plain objects: read in a worker, so that the page only has to make elements. */

export interface SvgElement {
  name: string;
  attributes: Record<string, string>;
  children: SvgElement[];
  text: string;
}

const TOKEN =
  /<!--[\s\S]*?-->|<\?[\s\S]*?\?>|<![^>]*>|<\/([\w:]+)\s*>|<([\w:]+)((?:\s+[\w:.-]+="[^"]*")*)\s*(\/?)>|([^<]+)/g;
const ATTRIBUTE = /([\w:.-]+)="([^"]*)"/g;
const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };

/** Reads the part of XML that Graphviz writes; anything else is an error. */
export function parseSvg(text: string): SvgElement {
  const top: SvgElement = { name: "", attributes: {}, children: [], text: "" };
  const open = [top];
  let end = 0;
  for (const token of text.matchAll(TOKEN)) {
    if (token.index !== end) break;
    end = token.index + token[0].length;
    const [, closed, opened, attributes, alone, words] = token;
    const at = open[open.length - 1]!;
    if (closed !== undefined) {
      if (open.length < 2 || at.name !== closed) throw new Error(`The picture is broken at </${closed}>.`);
      open.pop();
    } else if (opened !== undefined) {
      const element: SvgElement = { name: opened, attributes: {}, children: [], text: "" };
      for (const [, name, value] of attributes!.matchAll(ATTRIBUTE)) element.attributes[name!] = decoded(value!);
      at.children.push(element);
      if (!alone) open.push(element);
    } else if (words !== undefined) at.text += decoded(words);
  }
  const svg = top.children[0];
  if (end !== text.length || open.length !== 1 || svg?.name !== "svg") throw new Error("Graphviz gave no picture.");
  return svg;
}

function decoded(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d+)|#x([\da-f]+)|(\w+));/gi, (whole, decimal: string, hex: string, name: string) => {
    if (name) return ENTITIES[name] ?? whole;
    return String.fromCodePoint(decimal ? Number(decimal) : parseInt(hex, 16));
  });
}
