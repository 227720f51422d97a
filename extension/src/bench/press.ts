/**
 * What is pressed must stay until it is let go: a browser sends no click where the element under the pointer was
 * replaced or moved in between. So changes that come from Python wait that long.
 */

const LONGEST_MS = 3000; // a press whose end is not told: on scroll bars, or where a menu opens
const TOUCH_MS = 400; // a finger's click comes later than its pointerup

type Told = Event & { button?: number; buttons?: number; key?: string; pointerType?: string };

export class Press {
  private held = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly waiting: (() => void)[] = [];

  /** Follows what is pressed in a page; `counts` tells which elements matter. */
  constructor(page: EventTarget, counts: (target: EventTarget | null) => boolean) {
    const on = (type: string, heard: (event: Told) => void): void =>
      page.addEventListener(type, heard, { capture: true, passive: true });
    const begin = ({ target }: Told): void => {
      if (counts(target)) this.hold();
    };
    on("pointerdown", (event) => event.button === 0 && begin(event));
    on("keydown", (event) => event.key === " " && begin(event));
    on("pointerup", ({ pointerType }) => this.endIn(pointerType === "mouse" ? 0 : TOUCH_MS));
    on("pointermove", ({ buttons, pointerType }) => pointerType === "mouse" && buttons === 0 && this.endIn(0));
    for (const type of ["pointercancel", "keyup", "click"]) on(type, () => this.endIn(0));
  }

  /** Runs now, or as soon as nothing is pressed. */
  whenFree(run: () => void): void {
    if (this.held) this.waiting.push(run);
    else run();
  }

  private hold(): void {
    this.held = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.free(), LONGEST_MS);
  }

  /** The click is delivered in the same turn as the event that ends the press, or soon after it. */
  private endIn(milliseconds: number): void {
    if (!this.held) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.free(), milliseconds);
  }

  private free(): void {
    this.held = false;
    for (const run of this.waiting.splice(0)) run();
  }
}

let press: Press | undefined;

/** What is pressed in the benches of this page. */
export function pressInPage(): Press {
  press ??= new Press(document, (target) => target instanceof Element && target.closest(".pbb") !== null);
  return press;
}
