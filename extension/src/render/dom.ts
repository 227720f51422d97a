/** Elements without markup: text from users' models only ever becomes text. */

type Value = string | number | boolean | ((event: never) => void);

/** An element with attributes, listeners (functions) and children. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, Value> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else if (name.startsWith("aria-")) element.setAttribute(name, String(value));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

/** A button with a name for screen readers; `sign` is what is seen. */
export function button(name: string, sign: string, click: () => void, kind = ""): HTMLButtonElement {
  return make("button", { type: "button", title: name, "aria-label": name, class: kind, click }, sign);
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
