/** What asks Python for something cannot be pressed while its kernel is gone. */

import type { Cleanups } from "./live";

type Control = HTMLButtonElement | HTMLInputElement | HTMLSelectElement;

const ASKING = ".pbb-step :is(button, input, select), header [aria-label$='do'], :is(.pbb-notes, .pbb-newer) button";
/** Filters, order, tabs, what copies, and what opens in the page around: these do without Python. */
const LOCAL = ".pbb-toolbar *, thead *, [role='tab'], .pbb-dismiss, :has(> svg), [title^='Open ']";

/** Returns what disables the controls of a bench, those that are built later among them, and enables them again. */
export function controlsOf(root: HTMLElement, ends: Cleanups): (isLost: boolean) => void {
  const disabled = new Set<Control>();
  const disable = (): void => {
    for (const control of root.querySelectorAll<Control>(`:is(${ASKING}):enabled:not(${LOCAL})`)) {
      control.disabled = true;
      disabled.add(control);
    }
  };
  const observer = new MutationObserver(disable);
  ends.push(() => observer.disconnect());
  return (isLost) => {
    observer.disconnect();
    for (const control of disabled) control.disabled = false;
    disabled.clear();
    if (!isLost) return;
    disable();
    observer.observe(root, { childList: true, subtree: true });
  };
}
