/** What can be done about a failing module: those around a diagram, such as a bench, say so when they are asked. */

/** The event that asks; it bubbles from the diagram. */
export const OFFERS = "prepbench:offers";
/** The event that tells a diagram to ask again. */
export const OFFERS_CHANGED = "prepbench:offers-changed";

/** A button: its words, what they mean, and what it does. */
export interface Offer {
  readonly label: string;
  readonly title: string;
  run(): void;
}

interface Question {
  readonly fqn: string;
  readonly offers: Offer[];
}

/** Asks those around an element what can be done about a module. */
export function offersFor(from: HTMLElement, fqn: string): readonly Offer[] {
  const question: Question = { fqn, offers: [] };
  from.dispatchEvent(new CustomEvent(OFFERS, { detail: question, bubbles: true }));
  return question.offers;
}

/** Answers diagrams inside of an element; returns the function that ends it. */
export function answerOffers(place: HTMLElement, offers: (fqn: string) => readonly Offer[]): () => void {
  const answer = (event: Event): void => {
    const question = (event as CustomEvent<Question>).detail;
    question.offers.push(...offers(question.fqn));
  };
  place.addEventListener(OFFERS, answer);
  return () => place.removeEventListener(OFFERS, answer);
}
