"""Documents to draw: small ones by hand, a large one as a language model makes it."""

from __future__ import annotations

from prepbench.document.model import Failure, Graph, GraphCollectionDocument, Module, Node, SourceLine


def failing() -> GraphCollectionDocument:
    """A failed module, a leaf-wrapped one, one that is never called, and a name that is markup."""
    failure = Failure(
        "gate",
        "Gate",
        "data-dependent branch",
        "TraceError",
        "no <b>bool</b>",
        SourceLine("net.py", 7, "if x.sum() > 0:"),
        "Use torch.where.",
    )
    nodes = (
        Node(":x", "placeholder", "x", "x", shapes=("B×4",), dtypes=("float32",)),
        Node(":gate", "call_module", "gate", "gate", "gate", "Gate", "failed", ("B×4",), ("float32",), (":x",)),
        Node(":size", "call_method", "size", "size", inputs=(":x",)),
        Node(
            ":odd",
            "call_module",
            "odd",
            '<b>"x"\\</b>',
            '<b>"x"\\</b>',
            "Linear",
            "leaf",
            ("B×4",),
            ("float32",),
            (":gate", ":size"),
        ),
        Node(":output", "output", "output", "output", inputs=(":odd",), shapes=("B×4",)),
    )
    modules = (
        Module("", "Net", "traced", 20, 1),
        Module("gate", "Gate", "failed", 0, 1, failure),
        Module('<b>"x"\\</b>', "Linear", "leaf", 20, 1),
        Module("unused", "Dropout", "unvisited"),
    )
    return GraphCollectionDocument("Net", "module", (Graph("graph:", "", nodes),), modules, (failure,))


def language_model(blocks: int = 24, width: int = 80) -> GraphCollectionDocument:
    """A deep model of ``blocks * width`` operations in which one mask is used by every block."""
    nodes = [
        Node(":x", "placeholder", "x", "x", shapes=("B×S",)),
        Node(":mask", "call_function", "mask", "mask", inputs=(":x",), shapes=("S×S",)),
    ]
    modules = [Module("", "Model", "traced"), Module("layers", "ModuleList", "traced")]
    last = ":x"
    for block in range(blocks):
        owner = f"layers.{block}"
        modules += [
            Module(owner, "Block", "traced"),
            Module(f"{owner}.attention", "Attention", "traced"),
            Module(f"{owner}.mlp", "MLP", "traced"),
        ]
        skip = last
        for i in range(width):
            part = f"{owner}.attention" if i < width // 2 else f"{owner}.mlp"
            inputs = (last, ":mask") if i == width // 4 else (last, skip) if i == width - 1 else (last,)
            last = f":n{block}_{i}"
            nodes.append(Node(last, "call_function", f"op{i}", f"op{i}", part, inputs=inputs, shapes=("B×S×64",)))
    nodes.append(Node(":output", "output", "output", "output", inputs=(last,), shapes=("B×S×64",)))
    return GraphCollectionDocument("Model", "module", (Graph("graph:", "", tuple(nodes)),), tuple(modules))
