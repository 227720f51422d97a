/** Elements without markup: text from users' models only ever becomes text. */

type Value = string | number | boolean | ((event: never) => void);

/** An element with attributes, listeners (functions) and children; a button submits no form unless its type says so. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, Value> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (tag === "button") element.setAttribute("type", "button");
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else if (name.startsWith("aria-")) element.setAttribute(name, String(value));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

/** A sentence in which what stands between backticks is code. */
export function withCode(text: string): (Node | string)[] {
  const found: (Node | string)[] = [];
  let rest = 0;
  for (const match of text.matchAll(/(`{1,2})([^`]+)\1/g)) {
    found.push(text.slice(rest, match.index), make("code", {}, match[2]!));
    rest = match.index + match[0].length;
  }
  return [...found, text.slice(rest)].filter((part) => part !== "");
}

/** A button with a name for screen readers; `sign` is what is seen. */
export function button(name: string, sign: string, click: () => void, kind = ""): HTMLButtonElement {
  return make("button", { title: name, "aria-label": name, class: kind, click }, sign);
}

/** Two sheets, for buttons that copy; drawn, as many fonts lack the character. */
export function copyIcon(): SVGSVGElement {
  const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ width: 14, height: 14, viewBox: "0 0 16 16", "aria-hidden": "true" }))
    icon.setAttribute(name, String(value));
  const sheets = document.createElementNS("http://www.w3.org/2000/svg", "path");
  sheets.setAttribute("d", "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3");
  sheets.setAttribute("style", "fill:none;stroke:currentColor;stroke-width:1.4;stroke-linejoin:round");
  icon.append(sheets);
  return icon;
}

/** Puts text on the clipboard; also where the clipboard may not be used directly. */
export async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Saves a file through the browser. */
export function download(name: string, data: Blob): void {
  const url = URL.createObjectURL(data);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
