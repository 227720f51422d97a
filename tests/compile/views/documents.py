"""Documents to draw: small ones by hand, a large one as a language model makes it."""

from __future__ import annotations

from dataclasses import replace

from prepbench.document.hierarchy import grouped
from prepbench.document.model import Failure, Graph, GraphCollectionDocument, Module, Node, SourceLine


def failing() -> GraphCollectionDocument:
    """A failed module, a leaf module, one that is never called, and a name that is markup."""
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


def reused(times: int = 5) -> GraphCollectionDocument:
    """One block called several times, with an operation of the model between the second and the third call."""
    nodes = [Node(":x", "placeholder", "x", "x", shapes=("B×4",), dtypes=("float32",))]
    calls = {}
    last = ":x"
    for i in range(times):
        if i == 2:
            nodes.append(
                Node(":add", "call_function", "add", "operator.add", type="add", inputs=(last, ":x"), shapes=("B×4",))
            )
            last = ":add"
        for part, kind in (("linear", "Linear"), ("norm", "LayerNorm")):
            name = f":block_{part}_{i}"
            nodes.append(
                Node(name, "call_module", part, f"block.{part}", f"block.{part}", kind, shapes=("B×4",), inputs=(last,))
            )
            calls[name] = {"block": i, f"block.{part}": i}
            last = name
    nodes.append(Node(":output", "output", "output", "output", inputs=(last,), shapes=("B×4",)))
    modules = (
        Module("", "Net", "traced", 40, 1),
        Module("block", "Block", "traced", 40, times),
        Module("block.linear", "Linear", "traced", 20, times),
        Module("block.norm", "LayerNorm", "traced", 20, times),
    )
    return grouped(GraphCollectionDocument("Net", "module", (Graph("graph:", "", tuple(nodes)),), modules), calls)


def skips(depth: int = 12) -> GraphCollectionDocument:
    """A U-shaped network: the outermost connection skips everything."""
    nodes = [Node(":x", "placeholder", "x", "x", shapes=("B×3×H×W",))]
    modules = [Module("", "UNet", "traced")]
    last, down = ":x", []
    for side in ("down", "up"):
        for i in range(depth):
            fqn = f"{side}{i}"
            skip = (down.pop(),) if side == "up" else ()
            last_of = f":{fqn}"
            nodes.append(
                Node(last_of, "call_module", fqn, fqn, fqn, "Conv2d", inputs=(last, *skip), shapes=("B×8×H×W",))
            )
            modules.append(Module(fqn, "Conv2d", "traced", 8, 1))
            last = last_of
            if side == "down":
                down.append(last)
    nodes.append(Node(":output", "output", "output", "output", inputs=(last,), shapes=("B×8×H×W",)))
    return GraphCollectionDocument("UNet", "module", (Graph("graph:", "", tuple(nodes)),), tuple(modules))


def troubled(blocks: int = 6) -> GraphCollectionDocument:
    """Alike blocks of which one holds a failure, another a leaf; eight modules are never called."""
    document = language_model(blocks, 4)
    failure = Failure("layers.2.mlp", "MLP", "data-dependent branch", "TraceError", "no bool", None, "Use torch.where.")
    changed = {"layers.2.mlp": ("failed", failure), "layers.4.attention": ("leaf", None)}
    modules = [
        replace(m, status=changed[m.fqn][0], failure=changed[m.fqn][1]) if m.fqn in changed else m
        for m in document.modules
    ]
    modules += [Module(f"unused{i}", "Dropout", "unvisited") for i in range(8)]
    return replace(document, modules=tuple(modules), failures=(failure,))


def flat(operations: int = 200) -> GraphCollectionDocument:
    """Many operations of one module, every fifth of which uses the first."""
    nodes = [Node(":x", "placeholder", "x", "x", shapes=("B",))]
    for i in range(operations):
        inputs = (f":n{i - 1}" if i else ":x", *((":n0",) if i % 5 == 0 and i else ()))
        nodes.append(Node(f":n{i}", "call_function", f"n{i}", f"n{i}", inputs=inputs, shapes=("B",)))
    return GraphCollectionDocument(
        "Flat", "module", (Graph("graph:", "", tuple(nodes)),), (Module("", "Flat", "traced"),)
    )


def long(count: int, inputs: int = 1, between: int = 0) -> GraphCollectionDocument:
    """A chain of equal blocks of two operations, with operations of the model between them."""
    nodes = [Node(f":x{i}", "placeholder", f"x{i}", f"x{i}", shapes=("B×4",)) for i in range(inputs)]
    modules = [Module("", "Net", "traced", calls=1), Module("blocks", "Sequential", "traced", calls=1 - bool(between))]
    last = ":x0"
    for block in range(count):
        owner = f"blocks.{block}"
        modules.append(Module(owner, "Block", "traced", calls=1))
        steps = [("linear", owner), ("relu", owner), *(("add", "") for _ in range(between))]
        for i, (name, fqn) in enumerate(steps):
            node = Node(f":{name}{block}_{i}", "call_function", name, name, fqn, name, shapes=("B×4",), inputs=(last,))
            nodes.append(node)
            last = node.id
    nodes.append(Node(":output", "output", "output", "output", inputs=(last,)))
    return grouped(GraphCollectionDocument("Net", "module", (Graph("graph:", "", tuple(nodes)),), tuple(modules)))
