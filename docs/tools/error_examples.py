"""For each error class lines that raise it, and what to do; shown on the page of errors, run by the tests.

``torch``, ``nn``, ``pb``, a ``model`` of two layers and ``samples`` for it are there.
"""

ERRORS: dict[str, tuple[str, str]] = {
    "InputError": (
        'pb.capture(model, [torch.ones(2, 4), "text"])',
        "Look at the sample and the argument that the message names: samples are tensors, tuples, dicts or pb.Sample.",
    ),
    "ConditionError": (
        """
class Halves(nn.Module):
    def forward(self, x):
        return x.view(2, -1) if x.shape[0] % 2 == 0 else x

compiled = pb.compile_model(Halves(), tracing_inputs=[torch.ones(2, 4), torch.ones(6, 4)])
compiled(torch.ones(3, 4))""",
        "Call the model with sizes that the message allows, or compile it with tracing inputs of the sizes that you "
        "need. ``compiled.conditions`` lists all conditions; ``compiled.allow_unproven = True`` calls anyway.",
    ),
    "StaticAxisError": (
        """
pb.Bench(
    nn.Linear(4, 2), calibration_inputs=[torch.ones(2, 4)], data=[torch.ones(8, 4)]
).compile()""",
        "Make the axis dynamic, by the button of the card or with ``bench.set_axis``, or give data of the size that "
        "the axis has.",
    ),
    "CaptureError": (
        "pb.capture(nn.Linear(4, 2), [torch.ones(2, 3)])  # the model itself does not run on this",
        "Call the model with the sample first: capture needs calls that work.",
    ),
    "FullGraphError": (
        """
class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

pb.capture(Branch(), samples)""",
        "``error.failures`` has each reason with its line; ``pb.fix`` changes many of them, ``fullgraph=False`` leaves "
        "such parts to Python.",
    ),
    "NoGraphError": (
        """
from prepbench.capture.aten.attempts import NoGraphError

raise NoGraphError("The model could neither be exported nor kept as a leaf.", failure=None)""",
        "Capture parts of the model, or report the model: this is what is left when no way leads to a graph.",
    ),
    "UnknownOutputsError": (
        """
from prepbench.capture.sizes.learned_outputs import UnknownOutputsError

raise UnknownOutputsError("gate returned float32 of rank 1 where the captured graph was made for rank 2.")""",
        "A leaf returned another kind of value than on the samples: add a sample that takes this way.",
    ),
    "PreparationError": (
        """
from prepbench.prepare import fold_batch_norm_, run_passes

normalised = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
run_passes(pb.prepare_model(normalised, inputs=samples), [fold_batch_norm_])""",
        "The message names the layer and the pass, or the first node whose value differs: exclude it with "
        "``modules_to_exclude=``, or set the model to evaluation.",
    ),
    "SettingsError": (
        "pb.QuantizationSettings(weights_num_bits=5)",
        "The message says what the setting takes; :doc:`the reference <reference/QuantizationSettings>` has all of "
        "them in a table.",
    ),
    "NothingQuantizedError": (
        """
pb.compile_model(
    nn.Linear(4, 2),
    calibration_inputs=[torch.randn(1, 4), torch.randn(3, 4)],
    deployment_settings=pb.EagerDeployment(),
    quantization_settings=pb.QuantizationSettings(),
    layer_quantization_settings={"": pb.LayerQuantizationSettings(skip_quantization=True)},
)""",
        "The message has the reason of each layer. Of a model with variants, those without layers stay in float by "
        "themselves.",
    ),
    "NothingCompiledError": (
        """
class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else x.flip(0).clone().add_(float(x.sum()))

pb.compile_model(
    Branch(),
    calibration_inputs=samples,
    deployment_settings=pb.EagerDeployment(),
    quantization_settings=pb.QuantizationSettings(),
    fullgraph=False,
)""",
        "The whole model is a leaf, so that nothing is left to quantize: change the line that the message names, or "
        "compile in float.",
    ),
    "UnknownNameError": (
        'pb.check_traceability(model, samples)["dynamite"]',
        "The message lists the names that are there.",
    ),
    "CalibrationError": (
        """
pb.compile_model(
    model,
    tracing_inputs=samples,
    calibration_inputs=[torch.full((2, 4), float("nan"))],
    deployment_settings=pb.EagerDeployment(),
    quantization_settings=pb.QuantizationSettings(),
)""",
        "Give samples of real data: finite values, of shapes that the graph takes.",
    ),
    "TargetError": (
        """
normalised = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
pb.compile_model(
    normalised,
    tracing_inputs=samples,
    deployment_settings=pb.OnnxRuntimeDeployment(),
    skip_eval_set_mode=True,
)""",
        "The message names the operator or layer: change it, choose another target, or take ``fullgraph=False``.",
    ),
    "MissingPackageError": (
        """
import sys

sys.modules["openvino"] = None  # as where it is not installed
pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.OpenVinoDeployment())""",
        "Run the command in the message.",
    ),
    "PackageVersionError": (
        """
from prepbench._torch_compat.checks import needed_for

with needed_for("an example", "torchao"):
    import torchao._no_such_module""",
        "Install the version of the package that the message names.",
    ),
    "TorchVersionError": (
        """
from prepbench._torch_compat.checks import needed_for

with needed_for("an example"):
    torch._C._no_such_name""",
        "Install the version of torch that the message names.",
    ),
    "InternalError": (
        """
from prepbench.errors import printable
from prepbench.internal_errors import internal_errors_told

with internal_errors_told():
    printable(None)""",
        "Report it with its text and its traceback; the newest release may have mended it.",
    ),
    "MetricError": (
        'pb.compare({"float32": model}, [(samples[0], samples[0])], metric=lambda output, target: "good", rounds=0)',
        "A metric takes ``(output, target)`` of one batch and returns one number: :doc:`reference/metrics`.",
    ),
    "TrainingError": (
        """
prepared = pb.trainable(model, tracing_inputs=samples)
pb.recover(prepared, [(x, x) for x in samples], lambda output, target: output.sum() / 0)""",
        "Look at the sample that the message names, or take a smaller learning rate; the model holds the best weights.",
    ),
    "DocumentError": (
        """
from prepbench.document.codec import from_json

from_json("{}")""",
        "The file is cut off, or a newer prepbench wrote it: save it again, or update prepbench.",
    ),
    "ArtifactError": (
        """
import pathlib

pathlib.Path("empty").mkdir()
pb.load_compiled("empty")""",
        "Save the model again with ``compiled.save(folder)``; a folder that was changed by hand is refused.",
    ),
    "StorageError": (
        """
import pathlib

pathlib.Path("folder.html").mkdir()
pb.recursive_trace(model).to_html("folder.html")""",
        "Free space, or choose another place; the message says what is still there.",
    ),
    "Cancelled": (
        """
import time

def work(progress):
    while True:
        progress(pb.Progress("waiting", 0, 1))
        time.sleep(0.01)

job = pb.Job(work)
job.cancel()
job.result()""",
        "Nothing: somebody cancelled, and nothing was changed.",
    ),
    "ResultNumberError": (
        """
from prepbench.results.results import Results

Results(())[0]""",
        "Count with ``len(results)``, or find results by name with ``results.only(...)``.",
    ),
    "TaskError": (
        """
from prepbench.search.tasks import TaskError

raise TaskError("The task conv2 ended its process 3 times.")""",
        "The message has the name of the task and what its process said last; most often memory is short.",
    ),
    "ExecutorError": (
        """
from concurrent.futures import ThreadPoolExecutor

from prepbench.search.executors import run_tasks

closed = ThreadPoolExecutor(1)
closed.shutdown()
run_tasks(closed, "prepbench.search.parallel_scores:measure", [{}], {})""",
        "Give an executor that is open and has workers with the same versions: :doc:`guides/dask-cluster`.",
    ),
    "LatencyError": (
        """
from prepbench.measure.process import LatencyError

raise LatencyError("candidate 'int8': its timing process ended with exit code 3 while it loaded the model.")""",
        "Load the candidate in a fresh process and call it; ``rounds=0`` compares without timing.",
    ),
    "LatencyTimeoutError": (
        """
from prepbench.measure.process import LatencyTimeoutError

raise LatencyTimeoutError("candidate 'int8': its timing process gave no answer for 600 s.")""",
        "Give a larger ``timeout=``, or ``None`` to wait for ever.",
    ),
    "DamagedJournalError": (
        """
from prepbench.results.journal import DamagedJournalError

raise DamagedJournalError("results.sqlite is damaged or changed: it holds other tables than a journal does.")""",
        "Move the file away and measure again; the message says what is wrong with it.",
    ),
    "OtherVersionError": (
        """
from prepbench.results.journal import OtherVersionError

raise OtherVersionError("The journal was written by a newer prepbench.")""",
        "Update prepbench, or take another file.",
    ),
    "UnknownInputError": (
        """
from prepbench.capture.aten.leaf_operators import UnknownInputError

raise UnknownInputError("gate got a float where the captured graph was made for a tensor.")""",
        "A leaf was called with another kind of value than on the samples: add a sample that calls it so.",
    ),
}
