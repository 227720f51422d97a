/** Edges that would make a picture slow and unreadable become references; far boxes can be left out. */

import { allBoxes, type Box, box, type Cluster, type Edge, isCluster } from "./boxes";
import { push } from "./lookup";

const FAN_OUT = 8; // a value used more often is drawn as a reference at each use
const SPAN = 12; // and one that is used so many ranks further on

/** Only what is at most `hops` edges away. */
export function neighbourhood(root: Cluster, edges: Edge[], centre: string, hops: number): [Cluster, Edge[]] {
  const near = new Map<string, string[]>();
  for (const [source, target] of edges) {
    push(near, source, target);
    push(near, target, source);
  }
  const kept = new Set([centre]);
  let front = [centre];
  for (let hop = 0; hop < hops; hop++) {
    front = [...new Set(front.flatMap((at) => near.get(at) ?? []))].filter((id) => !kept.has(id));
    for (const id of front) kept.add(id);
  }
  return [
    filtered(root, (id) => kept.has(id)),
    edges.filter(([source, target]) => kept.has(source) && kept.has(target)),
  ];
}

function filtered(cluster: Cluster, keep: (id: string) => boolean): Cluster {
  const members = cluster.members.map((member) => (isCluster(member) ? filtered(member, keep) : member));
  return {
    ...cluster,
    members: members.filter((member) => (isCluster(member) ? member.members.length > 0 : keep(member.id))),
  };
}

/** Replace a value that is used often and far away by a reference at each use: long edges are what makes layouts slow and unreadable. */
export function withReferences(root: Cluster, edges: Edge[]): [Cluster, Edge[]] {
  const uses = new Map<string, number>();
  for (const [source] of edges) uses.set(source, (uses.get(source) ?? 0) + 1);
  const ranks = ranksOf(edges);
  const titles = new Map<string, string>();
  for (const each of allBoxes(root)) titles.set(each.id, each.title);
  const chips = new Map<string, Box[]>();
  const result = edges.map(([source, target]): Edge => {
    const span = ranks.get(target)! - ranks.get(source)!;
    if (span <= SPAN && (uses.get(source)! <= FAN_OUT || span <= 1)) return [source, target];
    const chip = box({ id: `ref:${source}>${target}`, kind: "reference", title: `◄ ${titles.get(source) ?? source}` });
    push(chips, target, chip);
    return [chip.id, target];
  });
  return [chips.size ? withChips(root, chips) : root, result];
}

function withChips(cluster: Cluster, chips: Map<string, Box[]>): Cluster {
  return {
    ...cluster,
    members: cluster.members.flatMap((member): (Box | Cluster)[] =>
      isCluster(member) ? [withChips(member, chips)] : [...(chips.get(member.id) ?? []), member],
    ),
  };
}

/** The longest way to each box, without the edges that close a circle (found depth first). */
function ranksOf(edges: Edge[]): Map<string, number> {
  const inputs = new Map<string, string[]>();
  for (const [source, target] of edges) {
    push(inputs, target, source);
    if (!inputs.has(source)) inputs.set(source, []);
  }
  const ranks = new Map<string, number>();
  const entered = new Set<string>();
  for (const start of inputs.keys()) {
    const stack = [start];
    while (stack.length) {
      const at = stack[stack.length - 1]!;
      if (ranks.has(at)) stack.pop();
      else if (!entered.has(at)) {
        entered.add(at);
        stack.push(...inputs.get(at)!.filter((source) => !entered.has(source)));
      } else {
        ranks.set(
          at,
          inputs.get(at)!.reduce((most, source) => Math.max(most, (ranks.get(source) ?? -1) + 1), 0),
        );
        stack.pop();
      }
    }
  }
  return ranks;
}
