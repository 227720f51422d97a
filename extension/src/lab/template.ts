/** A notebook to start from. */

interface TemplateCell {
  readonly id: string;
  readonly cell_type: "markdown" | "code";
  readonly source: string;
}

const CELLS: readonly TemplateCell[] = [
  {
    id: "what-this-is",
    cell_type: "markdown",
    source: `# Prepare a model

Put your own model and inputs into the next cell. Two samples that differ in a size keep that size dynamic.`,
  },
  {
    id: "model",
    cell_type: "code",
    source: `import torch
from torch import nn

import prepbench as pb


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.features(x).mean(dim=(2, 3)))


model = Classifier().eval()
samples = [torch.rand(2, 3, 32, 32), torch.rand(3, 3, 32, 32)]`,
  },
  {
    id: "see",
    cell_type: "code",
    source: `# What can be captured, what cannot, and why
collection = pb.recursive_trace(model, inputs=samples)
collection  # collection.diagram() is the same as a widget`,
  },
  {
    id: "bench-text",
    cell_type: "markdown",
    source: `The bench does the rest with switches: choose dynamic sizes and a precision per layer, then press **Compile**.
Give it representative inputs; *The same in Python* shows the lines that do what the switches say.`,
  },
  {
    id: "bench",
    cell_type: "code",
    source: `calibration = [torch.rand(8, 3, 32, 32) for _ in range(4)]
bench = pb.Bench(model, tracing_inputs=samples, calibration_inputs=calibration)
bench`,
  },
];

/** The kernel that a notebook asks for. */
export interface KernelSpec {
  readonly name: string;
  readonly display_name: string;
  readonly language: string;
}

/** The notebook to start from, in nbformat 4.5. */
export function notebookTemplate(kernel: KernelSpec | null): object {
  return notebook(CELLS, kernel);
}

/** A notebook with these cells of code. */
export function notebookOf(sources: readonly string[], kernel: KernelSpec | null): object {
  return notebook(
    sources.map((source, i) => ({ id: `cell-${i}`, cell_type: "code", source })),
    kernel,
  );
}

function notebook(cells: readonly TemplateCell[], kernel: KernelSpec | null): object {
  return {
    nbformat: 4,
    nbformat_minor: 5,
    metadata: kernel ? { kernelspec: { ...kernel } } : {},
    cells: cells.map((cell) =>
      cell.cell_type === "code"
        ? { ...cell, metadata: {}, execution_count: null, outputs: [] }
        : { ...cell, metadata: {} },
    ),
  };
}
