"""What the commands do with more than two classes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
from rich.markup import escape
from sklearn.utils.validation import has_fit_parameter

from bagwise.cli.console import Printer
from bagwise.files import Training, background_class
from bagwise.models.labels import is_binary


def class_arguments(arguments: Namespace, data: Training, printer: Printer) -> dict[str, Any]:
    """Arguments of ``fit`` that say what the labels mean and how much the classes count."""
    options: dict[str, Any] = {}
    if getattr(arguments, "class_weight", None) is not None:
        options["class_weight"] = arguments.class_weight
    several = not is_binary(data.y)
    background = arguments.background
    if not several:
        if background is not None:
            raise ValueError("--background is for more than two classes; use --positive.")
        return options
    if arguments.positive is not None:
        raise ValueError("--positive is for two classes; with more, name the --background.")
    if data.classes is not None:
        if background is not None:
            raise ValueError("--background has no meaning where a bag may have several classes.")
        return options
    classes = np.unique(data.y).tolist()
    if background is None:
        background = background_class(classes)
        said = "none" if background is None else background
        printer.say(f"background class: {escape(str(said))} (choose with --background)")
    elif background == "":
        background = None
    else:
        texts = [str(c) for c in classes]
        if background not in texts:
            raise ValueError(f"{data.labels}: has no label {background!r}; it has {classes}.")
        background = classes[texts.index(background)]
    return options if background is None else {**options, "background": background}


def ready_model(model: Any, name: str, y: Any, options: dict[str, Any], printer: Printer) -> Any:
    """The model, or one per class where it knows only two; refuses what it cannot use."""
    from bagwise.models.one_vs_rest import for_labels

    made = for_labels(model, y)
    if made is not model:
        printer.say(f"{name} knows two classes: one model is trained per class")
    for option in options:
        takes = has_fit_parameter(model if option == "class_weight" else made, option)
        if not takes:
            raise ValueError(f"{name} cannot use --{option.replace('_', '-')}; use vgpmil or auto.")
    return made


def labels_for_fit(data: Training) -> Any:
    """The labels, with the names of the classes where a bag may have several."""
    if data.classes is None:
        return data.y
    import pandas as pd

    return pd.DataFrame(data.y, columns=list(data.classes))


def check_columns(columns: tuple[str, ...] | None, model: Any) -> None:
    """Refuse columns of labels that are not the classes of the model, in their order."""
    classes = [str(c) for c in np.asarray(model.classes_).tolist()]
    if columns is not None and list(columns) != classes:
        raise ValueError(
            f"the model has the classes {','.join(classes)}; pass them as --label-column in this "
            f"order. Got {','.join(columns)}."
        )


def show_classes(evaluation: Any, printer: Printer, goal: Any = None) -> Any:
    """Print the table of classes with their recommended thresholds; returns it."""
    frame = evaluation.per_class(goal)
    title = f"each class against all others, {evaluation.source}"
    printer.table(frame.columns, frame.itertuples(index=False), title, words=("class",))
    return frame
