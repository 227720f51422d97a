import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { Press } from "../src/bench/press";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

function page(counts = true): { press: Press; tell: (type: string, more?: object) => void } {
  const target = new EventTarget();
  const press = new Press(target, () => counts);
  return { press, tell: (type, more = {}) => void target.dispatchEvent(Object.assign(new Event(type), more)) };
}

const MOUSE = { button: 0, buttons: 1, pointerType: "mouse" };

it("lets changes wait until the click was delivered", () => {
  const { press, tell } = page();
  const order: string[] = [];
  press.whenFree(() => order.push("before"));
  tell("pointerdown", MOUSE);
  press.whenFree(() => order.push("change"));
  press.whenFree(() => order.push("another"));
  tell("pointerup", MOUSE);
  order.push("click"); // in the same turn as pointerup
  vi.runAllTimers();
  press.whenFree(() => order.push("after"));
  expect(order).toEqual(["before", "click", "change", "another", "after"]);
});

it("waits for the later click of a finger, and for the space bar", () => {
  const { press, tell } = page();
  const changed = vi.fn();
  const touch = { ...MOUSE, pointerType: "touch" };
  tell("pointerdown", touch);
  press.whenFree(changed);
  tell("pointerup", touch);
  vi.advanceTimersByTime(200);
  expect(changed).not.toHaveBeenCalled();
  tell("click", touch);
  vi.advanceTimersByTime(0);
  expect(changed).toHaveBeenCalledTimes(1);
  tell("keydown", { key: " " });
  press.whenFree(changed);
  vi.advanceTimersByTime(100);
  expect(changed).toHaveBeenCalledTimes(1);
  tell("keyup", { key: " " });
  vi.advanceTimersByTime(0);
  expect(changed).toHaveBeenCalledTimes(2);
});

it("ends a press whose end is not told", () => {
  const { press, tell } = page();
  const changed = vi.fn();
  tell("pointerdown", MOUSE);
  press.whenFree(changed);
  tell("pointermove", { ...MOUSE, buttons: 1 });
  vi.advanceTimersByTime(0);
  expect(changed).not.toHaveBeenCalled();
  tell("pointermove", { ...MOUSE, buttons: 0 });
  vi.advanceTimersByTime(0);
  expect(changed).toHaveBeenCalledTimes(1);
  tell("pointerdown", MOUSE);
  press.whenFree(changed);
  vi.advanceTimersByTime(5000);
  expect(changed).toHaveBeenCalledTimes(2);
});

it("minds neither other buttons, other keys nor other places", () => {
  const changed = vi.fn();
  const here = page();
  here.tell("pointerdown", { ...MOUSE, button: 2 });
  here.tell("keydown", { key: "a" });
  here.press.whenFree(changed);
  const elsewhere = page(false);
  elsewhere.tell("pointerdown", MOUSE);
  elsewhere.press.whenFree(changed);
  expect(changed).toHaveBeenCalledTimes(2);
});
