/** What the page sets on the widget's model. */

interface Written {
  save_changes(): void;
}

/**
 * Sends what was set to Python, where it is still there: once the widget was closed (its cell ran again) or its kernel
 * has ended, the host throws. The page goes on with what it shows; false says that nothing was sent.
 */
export function saveChanges(model: Written): boolean {
  try {
    model.save_changes();
    return true;
  } catch {
    return false;
  }
}
