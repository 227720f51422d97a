/** What is visible, as data: the view that a person chose, and the boxes, clusters and edges that it gives. */

/** What a person has chosen to see; ids of groups, and of the box whose neighbourhood is shown. */
export interface View {
  open: string[] | null;
  unfolded: string[];
  root: string;
  around: string;
  hops: number;
  depth: number;
}

export const FIRST_VIEW: View = { open: null, unfolded: [], root: "", around: "", hops: 2, depth: 0 };

export interface Box {
  id: string;
  kind: string;
  title: string;
  subtitle: string;
  detail: string;
  status: string;
  fqn: string;
  inside: [string, number][];
  folded: string[];
  calls: string;
  change: string;
}

export interface Cluster {
  id: string;
  fqn: string;
  title: string;
  status: string;
  members: (Box | Cluster)[];
}

export type Edge = [string, string];

export interface Scene {
  root: Cluster;
  edges: Edge[];
  counts: [string, number][];
  expanded: string[];
  title: string;
}

export type Marks = ReadonlyMap<string, string>;

export function isCluster(member: Box | Cluster): member is Cluster {
  return "members" in member;
}

export function* allBoxes(cluster: Cluster): Generator<Box> {
  for (const member of cluster.members) {
    if (isCluster(member)) yield* allBoxes(member);
    else yield member;
  }
}

/** A box with what is usual left out. */
export function box(given: Partial<Box> & { id: string; kind: string; title: string }): Box {
  return {
    subtitle: "",
    detail: "",
    status: "traced",
    fqn: "",
    inside: [],
    folded: [],
    calls: "",
    change: "",
    ...given,
  };
}
