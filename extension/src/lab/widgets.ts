import type { Widget } from "@lumino/widgets";

/** The path of the document that a widget shows; "" for other widgets. */
export function documentPath(widget: Widget | null): string {
  const context = (widget as { context?: { path?: unknown } } | null)?.context;
  return typeof context?.path === "string" ? context.path : "";
}

export function isNotebook(widget: Widget | null): boolean {
  return documentPath(widget).endsWith(".ipynb");
}

export function isGraphFile(widget: Widget | null): boolean {
  return documentPath(widget).endsWith(".graph.json");
}

/** Whether `inner` lies in `outer`, as a widget or, where it is detached from its parent, as a node. */
export function holds(outer: Widget, inner: Widget): boolean {
  return outer === inner || outer.contains(inner) || outer.node.contains(inner.node);
}

/** An element with a class and a text; texts are never read as HTML. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  text = "",
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
