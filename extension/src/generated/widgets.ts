export interface AxisSummary {
  path: string;
  dim: number;
  sizes: number[];
  dynamic: boolean;
  symbol: string;
  name: string;
  min: number;
  max: number;
  linked: string[];
  problem: string;
  verified: string;
  reason: string;
  places: number;
  paths: string[];
}

export interface BenchSummary {
  title: string;
  sentence: string;
  notes: InputNote[];
  steps: StepSummary[];
  selected: string;
  failures: FailureSummary[];
  fixes_known: boolean;
  newer_code: string;
  assumptions: string[];
  leaf_wrap: boolean;
  leaf_label: string;
  leaves: string[];
  axes: AxisSummary[];
  layers: LayerFacts[];
  decisions: Decision[];
  planned: number[];
  outcomes: Outcome[];
  applied: number[];
  columns: LayerColumn[];
  measured: string;
  is_measuring: boolean;
  inspection: InspectionSummary;
  search: SearchSummary;
  search_now: SearchNow;
  recovery: RecoverySummary;
  expected: ExpectedSize;
  rules: RuleSummary[];
  base: string;
  settings: SettingField[];
  precisions: PrecisionChoice[];
  targets: TargetSummary[];
  queue: QueuedSummary[];
  turn: string;
  is_queued: boolean;
  runs: RunSummary[];
  elsewhere: ElsewhereSummary;
  shown_run: string;
  staleness: Staleness[];
  stale_of: number[];
  difference: RunDifference;
  workload: string;
  prompts: string[];
  written: WrittenBy[];
  code: string;
  stale: string;
  can_undo: boolean;
  can_redo: boolean;
  chart: Chart;
}

export interface BudgetStop {
  label: string;
  best: number;
  why: string;
}

export interface Card {
  kind: "" | "info" | "error";
  text: string;
  troubles: Trouble[];
  details: string;
  about: "" | "capture" | "compile" | "recover" | "search" | "layers" | "samples" | "export";
  outcomes: RunOutcome[];
  buttons: CardButton[];
}

export interface CardButton {
  label: string;
  action: "results" | "compare" | "export" | "code" | "measure_again" | "compare_with_float" | "apply_fixes" | "keep_in_pytorch" | "one_graph" | "keep_float" | "eight_bits" | "make_dynamic" | "make_static" | "use_target" | "save_model" | "download";
  value: string;
  again: "" | "capture" | "compile" | "recover" | "search" | "layers" | "samples" | "export";
}

export interface CardFact {
  label: string;
  value: string;
  note: string;
}

export interface Chart {
  title: string;
  x_title: string;
  y_title: string;
  better: string;
  width: number;
  height: number;
  left: number;
  top: number;
  right: number;
  bottom: number;
  x_ticks: Tick[];
  y_ticks: Tick[];
  front: number[];
  points: ChartPoint[];
}

export interface ChartPoint {
  name: string;
  note: string;
  kind: "float" | "run" | "elsewhere";
  x: number;
  y: number;
  x_end: number;
  y_low: number;
  y_high: number;
  radius: number;
  label: string;
  label_x: number;
  label_y: number;
}

export interface ClearRules {
  pattern: string[];
}

export interface CompareRuns {
  first: string;
  second: string;
}

export interface Decision {
  label: string;
  rule: string;
  weights: string;
  activations: string;
  weights_only: string;
  block: string;
  observer: string;
  algorithm: string;
  quantized: boolean;
  formats: string;
  equalised: string;
  pruning: string;
  pruned_by: string;
  mask: string;
  amount: string;
  score: string;
}

export interface DifferenceRow {
  what: string;
  first: string;
  second: string;
}

export interface ElsewhereSummary {
  count: number;
  shown: boolean;
  path: string;
}

export interface ExpectedSize {
  megabytes: number;
  float_megabytes: number;
  note: string;
}

export interface FailureSummary {
  fqn: string;
  type: string;
  title: string;
  place: string;
  code: string;
  remedy: string;
  file: string;
  line: number;
  diff: string;
  proof: string;
  can_fix: boolean;
  assumption: string;
  has_draft: boolean;
  fixed: boolean;
  is_leaf: boolean;
  graphs: number;
  count: number;
  fqns: string[];
  report: string;
}

export interface FoundSettings {
  id: string;
  name: string;
  target: string;
  measured: boolean;
  score: string;
  drop: string;
  latency: string;
  size: string;
  kept: string;
}

export interface InputNote {
  kind: "" | "hint" | "bad";
  text: string;
  label: string;
  paths: string[];
  dim: number;
  dynamic: boolean;
}

export interface InspectedError {
  sqnr: number | null;
  channels: number[];
  together: number;
  reference: number[];
  quantized: number[];
}

export interface InspectedValues {
  title: string;
  low: number;
  high: number;
  start: number;
  width: number;
  counts: number[];
  lows: number[];
  highs: number[];
  format: string;
  levels: number;
  steps: number[];
  grid: number[];
  clipped: number;
  clipped_channels: number[];
  note: string;
}

export interface InspectionSummary {
  fqn: string;
  state: "" | "running" | "ready" | "failed";
  stage: string;
  failure: Card;
  type: string;
  decided: string;
  why: string;
  shown: string;
  values: InspectedValues[];
  error: InspectedError;
  what_if: WhatIfChoice[];
  facts: string[][];
  place: string;
  file: string;
  line: number;
  code: string;
  frame: string;
  samples: string;
}

export interface LayerColours {
  title: string;
  unit: string;
  fqns: string[];
  values: number[];
}

export interface LayerColumn {
  key: string;
  title: string;
  unit: string;
  help: string;
  values: (number | null)[];
  worst: "" | "least" | "greatest";
  stale: string;
  notes: string[];
  noted: number[];
}

export interface LayerFacts {
  fqn: string;
  type: string;
  parameters: number;
}

export interface LimitAxis {
  path: string[];
  dim: number;
  min: number;
  max: number;
}

export interface MakePage {
  document: string;
}

export interface NameAxis {
  path: string;
  dim: number;
  name: string;
}

export interface OfCandidate {
  id: string;
}

export interface OfModule {
  fqn: string;
}

export interface OfRun {
  id: string;
}

export interface OptionField {
  name: string;
  title: string;
  help: string;
  kind: "choice" | "switch" | "number";
  choices: string[];
  value: string;
}

export interface Outcome {
  label: string;
  why: string;
  pruned: string;
  note: string;
}

export interface PinRun {
  id: string;
  pinned: boolean;
}

export interface PrecisionChoice {
  name: "int8" | "int8 weights" | "int4 weights" | "float32";
  label: string;
  explanation: string;
  enabled: boolean;
}

export interface QueuedSummary {
  id: string;
  name: string;
  target: string;
  settings: string;
}

export interface RecoverySummary {
  unavailable: string;
  repairs: CardButton[];
  on: boolean;
  said: string;
  labelled: boolean;
  metric: string;
  steps: number;
  distill: boolean;
  by_metric: boolean;
  learning_rate: number;
}

export interface RenameRun {
  id: string;
  name: string;
}

export interface Repair {
  how: "measure_again" | "compare_with_float" | "apply_fixes" | "keep_in_pytorch" | "one_graph" | "keep_float" | "eight_bits" | "make_dynamic" | "make_static" | "use_target";
  value: string;
  again: "" | "capture" | "compile" | "recover" | "search" | "layers" | "samples" | "export";
}

export interface RuleSummary {
  pattern: string;
  label: string;
  layers: number;
  prunes: boolean;
}

export interface RunDifference {
  first: string;
  second: string;
  results: DifferenceRow[];
  settings: DifferenceRow[];
  layers: DifferenceRow[];
  note: string;
  colours: LayerColours;
  samples: ShownSamples;
}

export interface RunOutcome {
  name: string;
  facts: CardFact[];
  note: string;
  is_doubtful: boolean;
}

export interface RunStatus {
  running: boolean;
  cancelling: boolean;
  stage: string;
  done: number;
  total: number;
  fraction: number;
  elapsed_s: number;
  remaining_s: number;
  then: string[];
  log: string[];
  about: "" | "capture" | "compile" | "recover" | "search" | "layers" | "samples" | "export";
  message: Card;
  writing: WrittenBy[];
  training: TrainingCurve;
}

export interface RunSummary {
  id: string;
  name: string;
  target: string;
  made: string;
  pinned: boolean;
  score: string;
  spread: string;
  change: string;
  p50: string;
  p90: string;
  speed: string;
  size: string;
  slower: boolean;
  why: string;
  error: string;
  is_live: boolean;
  eager: string;
  first: string;
  rate: string;
  peak: string;
  beside: string;
  where: string;
  is_far: boolean;
  is_own: boolean;
  model: string;
  lacks_float: boolean;
}

export interface SampleBox {
  left: number;
  top: number;
  width: number;
  height: number;
  text: string;
}

export interface SamplePart {
  name: string;
  modality: "image" | "audio" | "text" | "numbers";
  said: string;
  same: string;
  other: string;
  rest: string;
  picture: string;
  width: number;
  height: number;
  boxes: SampleBox[];
  sound: string;
  wave: number[];
  heard: number[];
}

export interface Search {
  minimize: "latency" | "size" | "drop";
  loss: string;
  latency: string;
  size: string;
}

export interface SearchNow {
  unavailable: string;
  repairs: CardButton[];
  is_searching: boolean;
  stale: string;
  used: number;
}

export interface SearchSummary {
  metric: string;
  budget: string;
  why: string;
  notes: string[];
  found: FoundSettings[];
  chart: Chart;
  bound: string;
  stops: BudgetStop[];
  stop: number;
}

export interface SendFile {
  what: "model" | "onnx" | "code" | "report";
}

export interface SetAxis {
  path: string[];
  dim: number;
  dynamic: boolean;
}

export interface SetLayers {
  pattern: string[];
  field: string;
  value: string;
}

export interface SetLeaf {
  fqn: string;
  leaf: boolean;
}

export interface SetLeafWrap {
  leaf_wrap: boolean;
}

export interface SetPrecision {
  pattern: string[];
  precision: "int8" | "int8 weights" | "int4 weights" | "float32";
}

export interface SetTarget {
  target: string;
  chosen: boolean;
}

export interface SetTargetOption {
  target: string;
  name: string;
  value: string;
}

export interface SettingField {
  name: string;
  title: string;
  help: string;
  kind: "choice" | "switch" | "number";
  choices: string[];
  refused: string[];
}

export interface ShowElsewhere {
  shown: boolean;
}

export interface Shown {
  shown: boolean;
}

export interface ShownSample {
  place: string;
  distance: string;
  inputs: SamplePart[];
  first: SamplePart[];
  second: SamplePart[];
  target: string;
}

export interface ShownSamples {
  first: string;
  second: string;
  caption: string;
  samples: ShownSample[];
}

export interface Staleness {
  texts: string[];
}

export interface StepSummary {
  name: "capture" | "axes" | "precision" | "run" | "recover" | "results";
  title: string;
  status: string;
  kind: "" | "good" | "warning" | "bad";
}

export interface TargetSummary {
  name: string;
  chosen: boolean;
  unavailable: string;
  problem: string;
  options: OptionField[];
}

export interface Tick {
  at: number;
  text: string;
}

export interface ToPath {
  path: string;
}

export interface TrainBack {
  steps: string;
  distill: boolean;
  by_metric: boolean;
  learning_rate: string;
}

export interface TrainingCurve {
  total: number;
  step: number;
  losses: number[];
  every: number;
  metric: string;
  by_loss: boolean;
  scored: number[];
  scores: number[];
  best: number;
  said: string;
}

export interface Trouble {
  fqn: string;
  type: string;
  reason: string;
  place: string;
  code: string;
  remedy: string;
  file: string;
  line: number;
}

export interface WhatIfChoice {
  precision: "int8" | "int8 weights" | "int4 weights" | "float32";
  label: string;
  sqnr: number | null;
  change: number | null;
  refusal: string;
  is_now: boolean;
}

export interface WrittenBy {
  name: string;
  texts: WrittenText[];
  numbers: string;
}

export interface WrittenText {
  same: string;
  other: string;
  rest: string;
  agree: number;
  tokens: number;
}

export interface BenchActions {
  set_axis: SetAxis;
  name_axis: NameAxis;
  limit_axis: LimitAxis;
  set_precision: SetPrecision;
  set_layers: SetLayers;
  clear_rules: ClearRules;
  set_target: SetTarget;
  set_target_option: SetTargetOption;
  set_leaf_wrap: SetLeafWrap;
  set_leaf: SetLeaf;
  apply_fix: OfModule;
  apply_fix_anyway: OfModule;
  apply_fixes: Record<string, never>;
  edit_draft: OfModule;
  remove_fix: OfModule;
  select: OfModule;
  inspect: OfModule;
  undo: Record<string, never>;
  redo: Record<string, never>;
  repair: Repair;
  compile: Record<string, never>;
  capture: Record<string, never>;
  again: Record<string, never>;
  measure_layers: Record<string, never>;
  search: Search;
  use_candidate: OfCandidate;
  clear_pruning: ClearRules;
  train_back: TrainBack;
  stop_training: Record<string, never>;
  no_training: Record<string, never>;
  cancel: Record<string, never>;
  cancel_all: Record<string, never>;
  remove_queued: OfRun;
  rename_run: RenameRun;
  pin_run: PinRun;
  delete_run: OfRun;
  show_run: OfRun;
  restore_run: OfRun;
  compare_runs: CompareRuns;
  show_elsewhere: ShowElsewhere;
  show_results: ToPath;
  save: ToPath;
  report: ToPath;
  export_onnx: ToPath;
  save_model: ToPath;
  download: SendFile;
  shown: Shown;
  still: Record<string, never>;
}

export interface DiagramActions {
  again: Record<string, never>;
  layout: Record<string, never>;
  page: MakePage;
}
