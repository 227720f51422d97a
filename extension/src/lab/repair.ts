/** The button of an error's card that opens a bench on the call that failed. */

const BUTTON = ".prepbench-error .prepbench-repair";
const CODE = "import prepbench as pb\n\npb.Bench.of_error()  # on the call that failed last";

/**
 * Puts the code into a cell below the card. The code is always the same and only runs when a person runs the cell,
 * because a card may stand in a notebook that nobody trusts.
 */
export function offerRepairs(insert: (code: string, from: HTMLElement) => void): void {
  document.addEventListener("click", ({ target }) => {
    const button = target instanceof Element ? target.closest<HTMLElement>(BUTTON) : null;
    if (button) insert(CODE, button);
  });
}
