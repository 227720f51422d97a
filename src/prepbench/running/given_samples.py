"""Samples in the forms that people have them: one element of a list or ``DataLoader`` becomes one call, and its label.

This is the one place that reads samples, for tracing, calibration, training and comparisons alike. Forward itself tells
inputs from labels: by the names in its signature, and where these leave a choice, by being called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from prepbench._torch_compat import pytree
from prepbench.checks import check_function, described
from prepbench.errors import InputError, PrepbenchError, PrepbenchWarning, printable, sentence
from prepbench.inputs import Sample, check_tensors, parameter_names, signature_of
from prepbench.interrupts import interruptible
from prepbench.objects.copy import Twin
from prepbench.objects.flatten import register_nodes
from prepbench.objects.restore import writes_watched
from prepbench.running import transforms
from prepbench.running.unchanged import own_copy, unchanged, without_output

LABELS = ("labels", "label", "targets", "target", "y", "y_true", "gt", "ground_truth", "class", "classes", "class_id")
"""Names by which data sets call what a model is to answer, the usual ones first."""

_KEPT = 1024


def normalize_samples(
    module_or_function: Callable[..., Any],
    samples: Any,
    *,
    name: str = "inputs",
    data_transform_fn: Callable[[Any], Any] | None = None,
    remarks: list[str] | None = None,
    form: Form | None = None,
) -> list[Sample]:
    """Read ``samples`` once and turn each element into a :class:`Sample`.

    An element may be a tensor; a tuple of positional arguments; a tuple ending in a dict of keyword arguments; a pair
    of a tuple and a dict, as ``torch.export`` takes them; a mapping of keyword arguments; or a mapping that ``forward``
    takes whole, as its one argument. A lone tensor or mapping in place of the list counts as one sample.

    It may also be a batch with a label: ``(x, y)``, ``(y, x)`` or a dict with further keys. What ``forward`` does not
    take is left out. Arrays become tensors, 64 bit floats in the dtype of the model's weights. Images of PIL become
    float tensors of shape (1, channels, height, width) with values from 0 to 1, one channel for grey and three for
    colours, a list of them one batch.

    Args:
        module_or_function: the callee; its signature decides how mappings and lists are passed.
        samples: an iterable of samples (a generator or ``DataLoader`` is read once). One without a length may have no
            end, so no more than its first 1,024 are read.
        name: the argument's name, for error messages.
        data_transform_fn: applied to each element first, see :func:`with_transform`.
        remarks: receives a sentence on what was left out or converted; None warns of it.
        form: that of the elements, where other samples have told it; elements without it are read as they are.

    Raises:
        InputError: no samples, or a sample that does not fit the signature (named by index).

    Example:
        >>> normalize_samples(torch.nn.Linear(4, 2), [torch.ones(1, 4)])[0].args[0].shape
        torch.Size([1, 4])
        >>> loader = torch.utils.data.DataLoader([(torch.ones(4), 1)] * 4, batch_size=2)
        >>> said = []
        >>> [len(sample.args) for sample in normalize_samples(torch.nn.Linear(4, 2), loader, remarks=said)]
        [1, 1]
        >>> said
        ['inputs: the last of the 2 parts of each batch is left out as its label, because forward takes input alone.']
    """
    transforms.check_splits(name, samples)
    if isinstance(samples, Mapping | Sample) or is_value(samples):
        samples = [samples]
    samples = transforms.with_transform(samples, data_transform_fn, name)
    check_iterable(name, samples)
    reader = Reader(module_or_function, name, source=samples)
    if form is not None:
        reader.form, reader.is_given_form = form, True
    result = [reader.read(element, index)[0] for index, element in reader.elements(is_kept=True)]
    if not result:
        again = " It is a generator, which can be read only once: make it anew." if samples is iter(samples) else ""
        raise InputError(
            f"{name} is empty: give at least one sample input, e.g. {name}=[torch.randn(1, 3, 32, 32)].{again}"
        )
    reader.tell(remarks)
    return result


def check_iterable(name: str, samples: Any) -> None:
    """Raise ``InputError`` unless samples can be read one by one."""
    transforms.check_splits(name, samples)
    transforms.check_batched(name, samples)
    if not isinstance(samples, Iterable) or isinstance(samples, str | bytes | type):
        raise InputError(
            f"{name} must be an iterable of sample inputs, got {described(samples)}. Give a list of tensors, tuples or "
            "dicts."
        )


def with_tokenizer(
    tokenizer: Callable[..., Any] | None, transform: Callable[[Any], Any] | None = None
) -> Callable[[Any], Any] | None:
    """Return a transform that tokenizes the texts of an element after another transform; None without either.

    Args:
        tokenizer: takes a list of texts and ``return_tensors="pt", padding=True``, as those of ``transformers`` do, and
            returns a mapping of tensors.
        transform: applied first.

    Raises:
        SettingsError: it is no function.

    Example:
        >>> def tokenizer(texts, **how):
        ...     return {"ids": torch.tensor([[len(text)] for text in texts])}
        >>> with_tokenizer(tokenizer)((["a", "bcd"], torch.tensor([0, 1])))[0]
        {'ids': tensor([[1],
                [3]])}
    """
    check_function("tokenizer", tokenizer, "tokenizer(texts, return_tensors='pt', padding=True)", optional=True)
    if tokenizer is None:
        return transform
    return _Tokenized(tokenizer, transform)


@dataclass(frozen=True)
class _Tokenized:
    tokenizer: Callable[..., Any]
    transform: Callable[[Any], Any] | None

    def __call__(self, element: Any) -> Any:
        value = element if self.transform is None else self.transform(element)
        if _is_text(value):
            return self.tokens(value)
        if isinstance(value, tuple | list) and any(map(_is_text, value)):
            return tuple(self.tokens(part) if _is_text(part) else part for part in value)
        if isinstance(value, Mapping):
            made: dict[str, Any] = {}
            for key, part in value.items():
                made.update(self.tokens(part) if _is_text(part) else {key: part})
            return made
        return value

    def tokens(self, texts: Any) -> dict[str, Any]:
        given = [texts] if isinstance(texts, str) else list(texts)
        padding = {"padding": True} if len(given) > 1 else {}  # many tokenizers of one text have no token to pad with
        try:
            made = self.tokenizer(given, return_tensors="pt", **padding)
        except Exception as error:
            raise InputError(
                f"tokenizer raises on {described(given[0])}: {type(error).__name__}: {sentence(error)} It is called as "
                "tokenizer(texts, return_tensors='pt', padding=True). Where it lacks a token to pad with, set "
                "tokenizer.pad_token = tokenizer.eos_token; for other forms, tokenize before."
            ) from error
        if not isinstance(made, Mapping) or not any(isinstance(value, torch.Tensor) for value in made.values()):
            raise InputError(
                f"tokenizer must return a mapping of tensors by the names of forward's arguments, got "
                f"{described(made)}. Give one of transformers, or tokenize before."
            )
        return dict(made)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(part, str) for part in value)
    )


# How the elements of one iterable are divided into inputs and labels.


@dataclass(frozen=True)
class Form:
    """What of an element goes to forward, and what is its label.

    Attributes:
        kind: ``"whole"``, or which part is the label: ``"last"``, ``"first"``; ``"keys"`` for mappings; ``"spread"``
            for a list whose parts are arguments; ``"call"`` for the two arguments of ``torch.export``: a tuple and a
            mapping.
        label: the key of the label, for keys.
        left_out: further keys that forward does not take.
        only: the one key whose value forward takes as its argument; "" where keys are its arguments.
        parts: how many an element has.
    """

    kind: str = "whole"
    label: str = ""
    left_out: tuple[str, ...] = ()
    only: str = ""
    parts: int = 0

    def divide(self, value: Any) -> tuple[Any, Any]:
        """Return the input and the label of an element, None for none."""
        if self.kind == "last":
            return _alone(value[:-1]), value[-1]
        if self.kind == "first":
            return _alone(value[1:]), value[0]
        if self.kind == "spread":
            return tuple(value), None
        if self.kind == "call":
            return (*value[0], value[1]), None
        if self.kind == "keys":
            target = value.get(self.label) if self.label else None
            if self.only:
                return (value[self.only],), target
            drop = {self.label, *self.left_out}
            return {key: part for key, part in value.items() if key not in drop}, target
        return value, None


_WHOLE = Form()


def _alone(parts: Any) -> Any:
    return parts[0] if len(parts) == 1 else tuple(parts)


@dataclass
class Reader:
    """Reads the elements of one iterable, all in the form of the first; errors name the argument and the index.

    Args:
        function: the callee.
        name: the argument, for errors.
        source: what is read; batches of a ``DataLoader`` often hold labels that forward could take, too, and labels of
            a data set are numbers for one sample.
        with_targets: whether each element needs a target.
    """

    function: Callable[..., Any]
    name: str = "inputs"
    source: Any = None
    with_targets: bool = False
    form: Form | None = None
    notes: list[str] = field(default_factory=list)
    is_given_form: bool = False
    """Whether the form came from elsewhere; elements without it are read as they are."""

    def __post_init__(self) -> None:
        self._signature = signature_of(self.function)
        self._of_loader = _is_loader(self.source)
        self._of_data_set = transforms.is_data_set(self.source)
        self._told = 0
        self._is_opened = False

    def elements(self, *, is_kept: bool = False) -> Iterator[tuple[int, Any]]:
        """Yield the elements of the source, each after its index.

        Args:
            is_kept: whether the caller keeps them all. A source without a length may have no end, so only its first
                elements are read then, which a note says.

        Raises:
            InputError: the source raises where it should give an element.
        """
        index = 0
        most = _KEPT if is_kept and transforms.length_of(self.source) is None else None
        try:
            for element in self.source:
                if index == most:
                    self.notes.append(
                        f"{self.name}: only its first {most:,} elements are read, because it has no length and may "
                        "have no end. To read more, give a list."
                    )
                    return
                yield index, element
                index += 1
        except PrepbenchError:
            raise
        except Exception as error:  # of the user's loader
            raise InputError(
                f"{self.name} raises instead of giving {self.name}[{index}]: {type(error).__name__}: "
                f"{sentence(error)} Its traceback is above; give {self.name} that can be read to their end."
            ) from error

    def read(self, element: Any, index: int) -> tuple[Sample, Any]:
        """Return the call and the target of an element.

        Raises:
            InputError: it does not fit the signature, or has another form than the first.
        """
        place = f"{self.name}[{index}]"
        if isinstance(element, Sample):
            return replace(element, index=index), None
        value = self._converted(element, place)
        if _is_record(value):
            if self.form is None:
                self._is_opened = self.with_targets or not self._runs(_WHOLE, value, index)
            if self._is_opened or (self.is_given_form and self.form != _WHOLE):
                value = self._converted(_opened(element), place)
        if self._of_data_set and not isinstance(self.source, transforms.Transformed) and _is_single(value):
            raise InputError(transforms.without_batches(self.name))
        if self.form is None:
            self.form = self._find(value, index, place)
            self.notes += [note] if (note := self._note(value)) else []
        form = self.form
        if self.is_given_form and not _has_form(value, form):
            form = _WHOLE
        elif self.is_given_form and (note := self._note(value)) and note not in self.notes:
            self.notes.append(note)
        if not _has_form(value, form):
            if self.with_targets:
                raise InputError(self._needs_pair(value, place))
            raise InputError(
                f"{place} is {_shape_words(value)}, and the elements before it had "
                f"{f'{form.parts} parts' if form.parts else 'other keys'}. Give elements of one form."
            )
        target = form.divide(value)[1]
        if self._of_data_set:
            target = _of_one_sample(target)
        sample = self._call(form, value, index)
        _check_fits(sample, self._signature, self.function, self.name)
        check_tensors(sample, self.function, self.name)
        return sample, target

    def tell(self, remarks: list[str] | None) -> None:
        """Say once what was left out and converted: in a list, or else as a warning where the caller called."""
        new, self._told = self.notes[self._told :], len(self.notes)
        if remarks is not None:
            remarks += [note for note in new if note not in remarks]
            return
        for note in new:
            warn(note)

    # -- finding the form ----------------------------------------------------------------------------------------------

    def _find(self, value: Any, index: int, place: str) -> Form:
        if isinstance(value, Mapping):
            return self._form_of_keys(value, index, place)
        if not _is_batch(value) or len(value) < 1:
            if self.with_targets:
                raise InputError(self._needs_pair(value, place))
            if isinstance(value, str) and not self._runs(_WHOLE, value, index):
                raise InputError(
                    f"{place} is text. Give tokenizer=..., which makes token numbers of texts, as those of "
                    "transformers do, or give tokens."
                )
            return _WHOLE
        count = len(value)
        last, first = Form("last", parts=count), Form("first", parts=count)
        if self.with_targets:
            return self._form_of_pair(value, index, place, last, first)
        spread = Form("spread", parts=count)
        if count == 1:
            is_list = isinstance(value, list) and not self._runs(_WHOLE, value, index)
            return spread if is_list and self._runs(spread, value, index) else _WHOLE
        if count == 2 and isinstance(value[0], tuple) and isinstance(value[1], Mapping):
            call = Form("call", parts=2)
            if not self._runs(_WHOLE, value, index) and self._runs(call, value, index):
                return call
        is_call = not isinstance(value, list) or _takes_positional(self._signature, count)
        if is_call and self._binds(_WHOLE, value, index) and not self._may_hold_label(value):
            return _WHOLE
        if isinstance(value[-1], Mapping) and not self._of_loader:
            return _WHOLE  # keyword arguments, of which one is misspelled
        order = [first, last] if _looks_like_label(value[0]) and not _looks_like_label(value[-1]) else [last, first]
        forms = order if self._label_is_argument(value) else [_WHOLE, *order]
        found = next((form for form in forms if self._runs(form, value, index)), _WHOLE)
        return self._whole_or_not(value, index, last) if found is _WHOLE and self._may_hold_label(value) else found

    def _whole_or_not(self, value: Any, index: int, last: Form) -> Form:
        """Return the form of a batch whose last part may be a label, and that forward takes whole.

        It may take it by chance: a label of shape (1,), or of another size of the inputs, fits by broadcasting. So both
        readings are tried with another number of rows.
        """
        label, names = value[-1], parameter_names(self.function)
        name = names[len(value) - 1] if len(value) <= len(names) else ""
        if label is None or name in LABELS or not self._runs(last, value, index):
            return _WHOLE
        shape = _rows_shape(label)
        other = _with_other_rows(value, shape[0]) if shape else None
        runs, runs_without = (other is not None and self._runs(form, other, index) for form in (_WHOLE, last))
        if runs_without and not runs:
            return last
        is_of_inputs = any(_rows_shape(part) == shape for part in value[:-1])
        if other is not None and not runs and self._is_none_by_default(name) and not is_of_inputs:
            return last
        if (runs_without or not runs) and (shape or self._of_loader or self._of_data_set):
            self.notes.append(
                f"{self.name}: all {len(value)} parts of each batch are given to forward, the last, of whole numbers, "
                f"as {name or 'its last argument'}. If it is a label, leave it out: transform=lambda batch: batch[:-1]."
            )
        return _WHOLE

    def _is_none_by_default(self, name: str) -> bool:
        parameters = {} if self._signature is None else self._signature.parameters
        return name in parameters and parameters[name].default is None

    def _form_of_pair(self, value: Any, index: int, place: str, last: Form, first: Form) -> Form:
        """Return which part of a batch is the target: the last, unless forward takes only the others."""
        if len(value) < 2 or (len(value) > 2 and not self._binds(last, value, index)):
            raise InputError(self._needs_pair(value, place))
        odd = _looks_like_label(value[0]) and not _looks_like_label(value[-1])
        if odd and not self._runs(last, value, index) and self._runs(first, value, index):
            return first
        return last

    def _form_of_keys(self, value: Mapping[Any, Any], index: int, place: str) -> Form:
        label = next((key for key in LABELS if key in value), "")
        names = set(parameter_names(self.function)) | _keywords_only(self._signature)
        unknown = tuple(key for key in value if key not in names and key != label)
        takes_any = self._signature is not None and any(
            one.kind is one.VAR_KEYWORD for one in self._signature.parameters.values()
        )
        forms = []
        if not self.with_targets and not (label and self._of_loader and self._binds(Form("keys", label), value, index)):
            forms.append(_WHOLE)
            if _takes_keywords(self._signature, value):
                return _WHOLE
        if self.with_targets and not label:
            if len(unknown) != 1:
                raise InputError(self._needs_pair(value, place))
            label, unknown = unknown[0], ()
        keep = () if takes_any else unknown
        forms += [Form("keys", label, keep)] if keep != unknown or set(value) & names else []
        rest = [key for key in value if key != label and isinstance(value[key], torch.Tensor)]
        forms += [Form("keys", label, only=key) for key in sorted(rest, key=lambda key: _looks_like_label(value[key]))]
        forms += [Form("keys", label)] if self.with_targets else []
        for form in forms:
            if self._runs(form, value, index):
                return form
        return _WHOLE if not self.with_targets else Form("keys", label, keep)

    def _may_hold_label(self, value: Any) -> bool:
        """Return whether a batch that forward could take whole may end or begin with its label."""
        if self._label_is_argument(value):
            return True
        return _looks_like_label(value[-1]) and self._binds(Form("last", parts=len(value)), value, 0)

    def _label_is_argument(self, value: Any) -> bool:
        """Return whether the last part of a loader's batch would go to an argument that is a label by its name."""
        names = parameter_names(self.function)
        is_named = len(value) <= len(names) and names[len(value) - 1] in LABELS
        return self._of_loader and is_named and self._binds(Form("last", parts=len(value)), value, 0)

    def _binds(self, form: Form, value: Any, index: int) -> bool:
        sample = self._call(form, value, index)
        return _misfit(self._signature, sample) is None

    def _call(self, form: Form, value: Any, index: int) -> Sample:
        """Return the call of an element; of a dict beside a label, only the keys that forward takes."""
        given = form.divide(value)[0]
        if (
            form.kind in ("last", "first")
            and isinstance(given, Mapping)
            and not _takes_keywords(self._signature, given)
        ):
            names = {*parameter_names(self.function), *_keywords_only(self._signature)}
            known = {key: part for key, part in given.items() if key in names}
            given = known if known and _takes_keywords(self._signature, known) else given
        return as_call(given, self._signature, index)

    def _runs(self, form: Form, value: Any, index: int) -> bool:
        """Return whether forward takes what this form gives it: tried, on a copy."""
        if not self._binds(form, value, index):
            return False
        sample = self._call(form, value, index)
        with contextlib.suppress(Exception):  # whatever it raises, this is not its input
            run_on_copy(Twin(self.function).model, sample)
            return True
        return False

    # -- words ---------------------------------------------------------------------------------------------------------

    def _note(self, value: Any) -> str:
        form = self.form or _WHOLE
        if form.kind in ("last", "first") and not (self.with_targets and form.kind == "last"):
            takes = ", ".join(parameter_names(self.function)[: max(1, form.parts - 1)]) or "the others"
            use = "is the target" if self.with_targets else "is left out as its label"
            return (
                f"{self.name}: the {form.kind} of the {form.parts} parts of each batch {use}, because forward takes "
                f"{takes} alone."
            )
        if form.kind != "keys":
            return ""
        left = [key for key in value if key in form.left_out or (form.only and key not in (form.only, form.label))]
        if form.label and not self.with_targets:
            left.append(form.label)
        said = f"{', '.join(map(repr, left))} left out, because forward does not need {_it(left)}" if left else ""
        if form.label and self.with_targets:
            said = "; ".join(filter(None, (f"{form.label!r} is the target", said)))
        return f"{self.name}: {printable(said)}." if said else ""

    def _needs_pair(self, value: Any, place: str) -> str:
        return (
            f"{place} must be a pair (input, target) because a metric or a loss is given, got {_shape_words(value)}. "
            "Convert the batches of a DataLoader with a generator: "
            "data=((b['pixels'], b['label']) for b in loader); several inputs go into one tuple: ((a, b), target). "
            "Without targets, leave metric and loss out."
        )

    # -- conversion ----------------------------------------------------------------------------------------------------

    def _converted(self, value: Any, place: str) -> Any:
        """Return an element with tensors in place of arrays and images."""
        images = _image_class()
        if images is not None and _holds_image(value, images):
            return self._with_images(value, images, place)
        if isinstance(value, Mapping):
            for part in value.values():
                transforms.check_no_table(place, part)
            if any(isinstance(part, np.ndarray) for part in value.values()):
                return {key: self._tensor(part, place) for key, part in value.items()}
            return value
        leaves = pytree.tree_leaves(value)
        for leaf in leaves:
            transforms.check_no_table(place, leaf)
        if not any(isinstance(leaf, np.ndarray) for leaf in leaves):
            return value
        return pytree.tree_map(lambda leaf: self._tensor(leaf, place), value)

    def _with_images(self, value: Any, kind: Any, place: str) -> Any:
        """Return an element with a tensor for each image or list of images, and for arrays and numbers beside it."""

        def made(part: Any) -> Any:
            if isinstance(part, kind):
                return _pixels([part], place)
            if isinstance(part, Mapping):
                return {key: made(one) for key, one in part.items()}
            if isinstance(part, bool | int | float):
                return torch.tensor([part])
            if isinstance(part, tuple | list) and part:
                if all(isinstance(one, kind) for one in part):
                    return _pixels(part, place)
                if isinstance(part, list) and all(isinstance(one, bool | int | float) for one in part):
                    return torch.tensor(part)
                return tuple(map(made, part)) if _holds_image(part, kind) else part
            transforms.check_no_table(place, part)
            return self._tensor(part, place)

        # images of a tuple are arguments, those of a list one batch
        is_one = not isinstance(value, tuple | list)
        is_one = is_one or (isinstance(value, list) and all(isinstance(one, kind) for one in value))
        return made(value) if is_one else tuple(map(made, value))

    def _tensor(self, leaf: Any, place: str) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        try:
            # read backwards, or of the other byte order: tensors have neither
            is_plain = leaf.dtype.isnative and leaf.flags.writeable and all(step >= 0 for step in leaf.strides)
            own = leaf if is_plain else leaf.astype(leaf.dtype.newbyteorder("="), order="C", copy=True)
            tensor = torch.from_numpy(own)
        except TypeError:
            # its text lists types of NumPy; as a cause, a TypeError would mean a call that does not fit
            raise InputError(
                f"{place} holds an array of {leaf.dtype}, which no tensor can hold. Convert it to numbers."
            ) from None
        wanted = _weights_dtype(self.function)
        if tensor.dtype is torch.float64 and wanted is not torch.float64:
            note = f"{self.name}: arrays of float64 are given as {str(wanted).removeprefix('torch.')}, as the weights."
            self.notes += [] if note in self.notes else [note]
            tensor = tensor.to(wanted)
        return tensor


def run_on_copy(own: Callable[..., Any], sample: Sample) -> None:
    """Run a twin on a copy of a sample; random numbers, state and what it prints leave no trace."""
    register_nodes(result_on_copy(own, sample))


def result_on_copy(own: Callable[..., Any], sample: Sample) -> Any:
    """Return what a twin returns for a copy of a sample, as :func:`run_on_copy` runs it."""
    module = own if isinstance(own, torch.nn.Module) else torch.nn.Module()
    with unchanged(module), without_output(), torch.no_grad(), writes_watched(module), interruptible():
        copied = own_copy(sample)
        result = copied.call(own)
        register_nodes((copied.args, copied.kwargs))  # a call may have filled an empty cache
        return result


def is_value(samples: Any) -> bool:
    """Return whether something is the value of one argument, not several samples."""
    images = _image_class()
    return isinstance(samples, torch.Tensor | np.ndarray) or (images is not None and isinstance(samples, images))


def _is_single(value: Any) -> bool:
    """Return whether a row of a table is one sample: some of its values are single numbers."""
    parts = value.values() if isinstance(value, Mapping) else ()
    return any(
        isinstance(part, bool | int | float) or (isinstance(part, torch.Tensor) and not part.ndim) for part in parts
    )


def _of_one_sample(target: Any) -> Any:
    """Return a label with the dim of the batch of one that stands beside it."""
    if isinstance(target, bool | int | float | np.generic):
        return torch.tensor([target])
    return target[None] if isinstance(target, torch.Tensor) and not target.ndim else target


def _is_loader(samples: Any) -> bool:
    samples = samples.data if isinstance(samples, transforms.Transformed) else samples
    return isinstance(samples, DataLoader | IterableDataset)


def _is_batch(value: Any) -> bool:
    return isinstance(value, tuple | list) and not hasattr(value, "_fields")


def _is_record(value: Any) -> bool:
    """Return whether a value has named parts, but is no mapping: a named tuple, or an object of a dataclass."""
    if isinstance(value, Mapping | torch.Tensor | type):
        return False
    return dataclasses.is_dataclass(value) or (isinstance(value, tuple) and hasattr(value, "_fields"))


def _opened(value: Any) -> Any:
    """Return the parts of a record: those of a tuple by their place, those of a dataclass by their names."""
    if isinstance(value, tuple):
        return tuple(value)
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def _has_form(value: Any, form: Form) -> bool:
    if form.kind == "whole":
        return True
    if form.kind == "keys":
        needed = {key for key in (form.label, form.only) if key}
        return isinstance(value, Mapping) and needed <= set(value)
    return _is_batch(value) and len(value) == form.parts


def _looks_like_label(value: Any) -> bool:
    """Return whether a value has one whole number for each sample, or none at all."""
    if value is None or isinstance(value, bool | int):
        return True
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(part, bool | int) for part in value)
    is_whole = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return is_whole and value.dim() <= 1


def _rows_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor or of a list of numbers; () for one number and for anything else."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return (len(value),) if isinstance(value, list | tuple) and _looks_like_label(value) else ()


def _with_other_rows(value: Any, rows: int) -> Any:
    """Return a batch with a number of rows, taken from its own, that is no size of it; None for an empty one."""
    sizes = {size for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor) for size in leaf.shape}
    if not rows:
        return None
    places = [place % rows for place in range(next(n for n in range(2, len(sizes) + 4) if n not in {*sizes, rows}))]

    def taken(part: Any) -> Any:
        return part[places] if isinstance(part, torch.Tensor) and part.dim() and len(part) == rows else part

    def of_part(part: Any) -> Any:
        if isinstance(part, list | tuple) and _looks_like_label(part):
            return [part[place] for place in places] if len(part) == rows else part
        return pytree.tree_map(taken, part)

    return tuple(map(of_part, value))


def _it(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def _shape_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with the keys {', '.join(map(repr, list(value)[:6]))}"
    return f"{type(value).__name__}{f' of length {len(value)}' if isinstance(value, tuple | list) else ''}"


def _keywords_only(signature: inspect.Signature | None) -> set[str]:
    every = signature.parameters.values() if signature is not None else ()
    return {one.name for one in every if one.kind is one.KEYWORD_ONLY}


def _weights_dtype(function: Callable[..., Any]) -> torch.dtype:
    module = function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    tensors: Iterator[torch.Tensor] = module.parameters() if isinstance(module, torch.nn.Module) else iter(())
    return next((one.dtype for one in tensors if one.is_floating_point()), torch.float32)


# Images of PIL, which is asked for only where somebody has it.


def _image_class() -> Any:
    module = sys.modules.get("PIL.Image")
    return getattr(module, "Image", None)


def _holds_image(value: Any, kind: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_image(part, kind) for part in value.values())
    return isinstance(value, kind) or (isinstance(value, tuple | list) and any(_holds_image(p, kind) for p in value))


def _pixels(images: Sequence[Any], place: str) -> torch.Tensor:
    """Return images as one float tensor of shape (count, channels, height, width), values from 0 to 1."""
    found = []
    for image in images:
        if image.mode in ("I", "F"):
            raise InputError(
                f"{place} is an image of mode {image.mode!r}, whose range is not known. Give a tensor, scaled as the "
                "model was trained."
            )
        if image.mode.startswith("I;16"):
            array = np.asarray(image, dtype=np.float32)[None] / 65535
        elif image.mode in ("1", "L", "LA"):
            array = np.asarray(image.convert("L"), dtype=np.float32)[None] / 255
        else:
            array = np.asarray(image.convert("RGB"), dtype=np.float32).transpose(2, 0, 1) / 255
        found.append(torch.from_numpy(np.ascontiguousarray(array)))
    if len({tuple(one.shape) for one in found}) > 1:
        sizes = ", ".join("×".join(map(str, one.shape)) for one in found[:4])
        raise InputError(
            f"{place} has images of different shapes: {sizes}. Resize them to one size with image.resize, and convert "
            "all to grey or all to colour with image.convert."
        )
    return torch.stack(found)


def warn(text: str, libraries: Container[str] = ("prepbench",)) -> None:
    """Warn at the line of the user's code that calls prepbench, or the first of ``libraries`` that leads to it."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in libraries:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, PrepbenchWarning, stacklevel=level)


# From a value to the call.


def as_call(value: Any, signature: inspect.Signature | None, index: int) -> Sample:
    """Return the call that an input stands for."""
    if isinstance(value, Sample):
        return replace(value, index=index)
    if isinstance(value, Mapping):
        if _takes_keywords(signature, value):
            return Sample((), dict(value), index)
        return Sample((value,), {}, index)
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        if value and isinstance(value[-1], dict) and _takes_keywords(signature, value[-1], positional=len(value) - 1):
            return Sample(value[:-1], dict(value[-1]), index)
        return Sample(value, {}, index)
    if isinstance(value, list) and len(value) != 1 and _takes_positional(signature, len(value)):
        return Sample(tuple(value), {}, index)
    return Sample((value,), {}, index)


def _takes_keywords(signature: inspect.Signature | None, mapping: Mapping[Any, Any], positional: int = 0) -> bool:
    if signature is None or not all(isinstance(key, str) for key in mapping):
        return False
    try:
        signature.bind(*[None] * positional, **mapping)
    except TypeError:
        return False
    # forward(batch, **kwargs) binds anything by keyword only when nothing is required by position
    return True


def _takes_positional(signature: inspect.Signature | None, count: int) -> bool:
    if signature is None:
        return False
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _misfit(signature: inspect.Signature | None, sample: Sample) -> TypeError | None:
    """Return the reason why a call does not fit a signature; None where it does."""
    if signature is None:
        return None
    try:
        signature.bind(*sample.args, **sample.kwargs)
    except TypeError as error:
        return error
    return None


def _check_fits(
    sample: Sample, signature: inspect.Signature | None, module_or_function: Callable[..., Any], name: str
) -> None:
    error = _misfit(signature, sample)
    if error is None:
        return
    owner = type(module_or_function).__name__ if isinstance(module_or_function, torch.nn.Module) else "the function"
    raise InputError(
        f"{name}[{sample.index}] does not fit {owner}.forward{signature}: {error}. Give a tensor, a tuple of "
        "positional arguments (a dict of keyword arguments may come last), or a dict of keyword arguments; "
        "transform=... can reshape what a DataLoader or a data set yields."
    ) from error
