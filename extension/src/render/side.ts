/** What stands beside the picture: details of what is selected, else what is wrong with the model. */

import palette from "../generated/palette.json";
import type { Details, Neighbour } from "./details";
import { copyIcon, copyText, make, withCode } from "./dom";
import type { Trouble } from "./engine";
import type { Offer } from "./offers";

const STATUS = palette.status as Record<string, { glyph: string; word: string }>;
const SHOWN = 200;

export interface SideActions {
  reveal(id: string): void;
  toggle(id: string): void;
  focusOn(group: string): void;
  openSource: ((file: string, line: number, code: string) => void) | undefined;
  offers(fqn: string): readonly Offer[];
  say(text: string): void;
}

/** The failed modules and leaf modules, with reasons; each row leads to its module. */
export function troubleList(troubles: Trouble[], findings: string[], actions: SideActions): Node[] {
  const hint = make(
    "p",
    { class: "pbd-dim" },
    "Click a box for details. Double-click, or Enter, opens and closes modules. ? shows all keys.",
  );
  const notes = findings.length
    ? [
        make("h4", {}, "Assumptions"),
        make("ul", { class: "pbd-list pbd-dim" }, ...findings.slice(0, SHOWN).map((text) => make("li", {}, text))),
      ]
    : [];
  if (!troubles.length) return [...notes, hint];
  const rows = troubles.slice(0, SHOWN).map((trouble) =>
    make(
      "li",
      {},
      make(
        "button",
        {
          class: `pbd-trouble pbd-is-${trouble.status}`,
          click: () => actions.reveal(trouble.id || trouble.fqn),
          disabled: !trouble.id && trouble.fqn !== "",
        },
        make(
          "span",
          { class: "pbd-trouble-name" },
          `${STATUS[trouble.status]!.glyph} ${trouble.fqn || "the model itself"}`,
        ),
        make("span", { class: "pbd-trouble-reason" }, trouble.reason || STATUS[trouble.status]!.word),
        make("span", { class: "pbd-dim" }, trouble.place ? shortPlace(trouble.place) : ""),
      ),
    ),
  );
  const more =
    troubles.length > SHOWN
      ? [make("p", { class: "pbd-dim" }, `and ${troubles.length - SHOWN} more: search for “failed”`)]
      : [];
  return [
    make("h4", {}, "Not captured as a graph"),
    make("ul", { class: "pbd-troubles" }, ...rows),
    ...more,
    ...notes,
    hint,
  ];
}

/** Details of one box, or a list of several. */
export function detailsOf(all: Details[], open: (group: string) => boolean, actions: SideActions): Node[] {
  if (all.length !== 1) return severalOf(all, actions);
  const details = all[0]!;
  const parts: Node[] = [
    make(
      "div",
      { class: "pbd-title" },
      make("h4", {}, details.title),
      ...(details.fqn
        ? [
            make(
              "button",
              {
                title: "Copy the name (C)",
                "aria-label": `copy ${details.fqn}`,
                class: "pbd-icon",
                click: () => void copyName(details.fqn, actions),
              },
              copyIcon(),
            ),
          ]
        : []),
    ),
  ];
  const list = make("dl");
  for (const [name, value] of details.rows) list.append(make("dt", {}, name), make("dd", {}, value));
  parts.push(list);
  if (details.failure) {
    parts.push(
      make(
        "p",
        { class: "pbd-reason" },
        make("b", {}, details.failure.reason),
        details.failure.raised ? make("small", {}, details.failure.raised) : "",
      ),
    );
    if (details.failure.remedy)
      parts.push(
        make("p", { class: "pbd-remedy" }, make("b", {}, "What to do: "), ...withCode(details.failure.remedy)),
      );
    const offers = actions
      .offers(details.fqn)
      .map(({ label, title, run }) => make("button", { title, click: run }, label));
    if (offers.length) parts.push(make("div", { class: "pbd-actions" }, ...offers));
  }
  for (const finding of details.findings) parts.push(make("p", { class: "pbd-remedy" }, ...withCode(finding)));
  if (details.source) parts.push(...sourceOf(details, actions));
  if (details.group) {
    parts.push(
      make(
        "div",
        { class: "pbd-actions" },
        make(
          "button",
          { click: () => actions.toggle(details.id) },
          open(details.group) ? "Close module" : "Open module",
        ),
        make("button", { click: () => actions.focusOn(details.group) }, "Show only this"),
      ),
    );
  }
  parts.push(...neighboursOf("from", details.producers, actions), ...neighboursOf("to", details.consumers, actions));
  return parts;
}

function severalOf(all: Details[], actions: SideActions): Node[] {
  const rows = all.map((details) =>
    make(
      "li",
      {},
      make("button", { class: "pbd-link", click: () => actions.reveal(details.id) }, details.title),
      ` ${details.rows[0]?.[1] ?? ""}`,
    ),
  );
  const names = all.map((details) => details.fqn).filter(Boolean);
  return [
    make(
      "div",
      { class: "pbd-title" },
      make("h4", {}, `${all.length} selected`),
      make(
        "button",
        {
          title: "Copy the names (C)",
          "aria-label": "copy names",
          class: "pbd-icon",
          click: () => void copyName(names.join("\n"), actions),
        },
        copyIcon(),
      ),
    ),
    make("ul", { class: "pbd-list" }, ...rows),
  ];
}

async function copyName(text: string, actions: SideActions): Promise<void> {
  await copyText(text);
  actions.say(`Copied ${text.split("\n").length > 1 ? "the names" : text}`);
}

function sourceOf(details: Details, actions: SideActions): Node[] {
  const { file, line, code } = details.source!;
  const place = shortPlace(`${file}:${line}`);
  const open = actions.openSource;
  const head = open
    ? make(
        "button",
        { class: "pbd-link", title: `Open ${file}, line ${line}`, click: () => open(file, line, code) },
        `Open line · ${place}`,
      )
    : make("span", { class: "pbd-dim", title: `${file}:${line}` }, place);
  return [
    head,
    make("pre", { class: "pbd-code", tabindex: 0, role: "region", "aria-label": "source" }, details.frame || code),
  ];
}

function neighboursOf(word: string, neighbours: Neighbour[], actions: SideActions): Node[] {
  if (!neighbours.length) return [];
  const rows = neighbours.map((each) =>
    make("li", {}, make("button", { class: "pbd-link", click: () => actions.reveal(each.id) }, each.text)),
  );
  return [make("div", { class: "pbd-dim" }, word), make("ul", { class: "pbd-list" }, ...rows)];
}

function shortPlace(place: string): string {
  return place.split(/[\\/]/).pop() ?? place;
}
