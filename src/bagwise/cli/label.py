"""``bagwise label``: read bags and model, start the page, leave labels behind."""

from __future__ import annotations

import html
import os
import tempfile
import webbrowser
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.markup import escape

from bagwise import persist
from bagwise.bags import Bags
from bagwise.cli.arguments import bag_options, set_up
from bagwise.cli.console import Printer
from bagwise.cli.inputs import file_names, read_labelled, read_unlabelled
from bagwise.core.arrays import Column, Ints
from bagwise.core.lazy import optional
from bagwise.files import read_geojson, read_label_studio, read_training, write_label_studio
from bagwise.files.geojson import read_json
from bagwise.files.problems import bad_file
from bagwise.label import STRATEGIES, CurveBags, Journal
from bagwise.label.journal import Answer, check_ids

if TYPE_CHECKING:
    from bagwise.label import Session
    from bagwise.models.base import Model

# Questions that are written for Label Studio.
_TASKS = 500
# Bags of the demo that instances are labelled in, and those held out for the curve.
_DEMO_BAGS, _DEMO_TEST_BAGS = 100, 50


def configure(parser: ArgumentParser) -> None:
    """Arguments of ``bagwise label``."""
    set_up(
        parser,
        label,
        "bagwise label --demo",
        "bagwise label model.bagwise --bags features/ --labels labels.csv \\",
        "              --images patches/ --out instance_labels.csv",
        "bagwise label model.bagwise --bags features/ --import drawn.geojson --bag slide_7 \\",
        "              --out instance_labels.csv --export-only",
    )
    add = parser.add_argument
    add("model", type=Path, nargs="?", help="model file made by bagwise fit")
    add("--demo", action="store_true", help="try it on bundled digits")
    what = "labels of the bags the model was trained on; without them the bags are new to it"
    bag_options(parser, bags_required=False, labels_required=False, labels_help=what)
    what = "folder with pictures BAG/INDEX.png, or the name of the dataset that holds them"
    add("--images", metavar="FOLDER", help=what)
    add("--test-bags", type=Path, metavar="PATH", help="held-out bags for the curve")
    add("--test-labels", type=Path, metavar="CSV", help="labels of --test-bags")
    add("--strategy", choices=STRATEGIES, default="information", help="which instances to ask")
    add("--auto", type=int, default=10, metavar="K", help="learn after K answers (default: 10)")
    add("--seed", type=int, default=0, help="random seed (default: 0)")
    add("--port", type=int, default=0, help="port (default: any that is free)")
    add("--no-browser", action="store_true", help="only print the address")
    add("--save-model", type=Path, metavar="FILE", help="on leaving, save what the model learned")
    add("--out", type=Path, metavar="CSV", help="instance labels; an existing file is gone on with")
    add = parser.add_argument_group("QuPath and Label Studio").add_argument
    what = "take in GeoJSON from QuPath (with --bag) or annotations from Label Studio"
    add("--import", dest="import_file", type=Path, metavar="FILE", help=what)
    add("--bag", metavar="NAME", help="the bag that --import is about")
    add("--label-studio", type=Path, metavar="FILE", help="write tasks with predictions, and end")
    add("--export-only", action="store_true", help="import and export, without the page")


class _Setting(NamedTuple):
    """Everything a session needs."""

    model: Model
    bags: Bags
    y: Column | None
    class_names: list[str]
    test: CurveBags | None
    extra: dict[str, object]  # of the model file that is saved in the end


def label(arguments: Namespace, printer: Printer) -> dict[str, object]:
    """Start the page, or exchange labels with other tools."""
    if not arguments.demo and (arguments.model is None or arguments.bags is None):
        raise ValueError("label needs a model file and --bags, or --demo.")
    if arguments.out is None and not arguments.demo:
        raise ValueError("label needs --out, the CSV that the instance labels go to.")
    if (arguments.test_bags is None) != (arguments.test_labels is None):
        raise ValueError("--test-bags and --test-labels go together.")
    if arguments.auto < 0:
        raise ValueError(f"--auto must be 0 or more; got {arguments.auto}.")
    out = arguments.out or Path("demo-labels.csv")
    setting = _demo(arguments, printer) if arguments.demo else _from_files(arguments, printer)
    names, answers = setting.class_names, []
    check_ids(setting.bags.ids)
    if arguments.import_file is not None:  # first: a bad file must not leave a journal
        answers = _import(arguments.import_file, setting.bags, names, arguments.bag)
    with Journal(out, names) as journal:
        if arguments.import_file is not None:
            new = journal.add_new(answers)
            printer.say(f"took {new} labels from {escape(str(arguments.import_file))}")
        if arguments.export_only and arguments.label_studio is None:
            journal.write_table()
            printer.say(f"wrote {escape(str(out))}")
            return {"out": str(out), "answers": len(journal.state)}
        with printer.working("projecting the instances once"):
            session = _session(arguments, setting, journal)
        if arguments.label_studio is not None:
            n = _write_tasks(session, arguments.label_studio)
            printer.say(f"wrote {n} tasks to {escape(str(arguments.label_studio))}")
            return {"tasks": n, "file": str(arguments.label_studio)}
        _serve(arguments, session, printer)
        if arguments.save_model is not None:
            model, extra = session.fitted_model(), setting.extra
            persist.save(model, arguments.save_model, bags=setting.bags, extra=extra)
            printer.say(f"saved {escape(str(arguments.save_model))}")
        state = session.state()
        printer.say(f"{state['n_yes']} yes, {state['n_no']} no in {escape(str(out))}")
        return {"out": str(out), "yes": state["n_yes"], "no": state["n_no"]}


def _from_files(arguments: Namespace, printer: Printer) -> _Setting:
    about, model = persist.about(arguments.model), persist.load(arguments.model)
    names = about["extra"].get("class_names") or list(model.classes_)
    data_names = file_names(arguments)
    if _is_folder(arguments.images):
        data_names = replace(data_names, images=None)
    y = None
    if arguments.labels is None:
        bags, _ = read_unlabelled(arguments, printer, data_names)
    else:
        data = read_labelled(arguments, printer, names=data_names)
        bags, y = data.bags, _coded(data.y, names, model.classes_, arguments.labels)
    test = None
    if arguments.test_bags is not None:
        data = read_training(
            arguments.test_bags,
            arguments.test_labels,
            replace(data_names, images=None),
            skip_bad=arguments.skip_bad,
        )
        y_test = _coded(data.y, names, model.classes_, arguments.test_labels)
        test = CurveBags(data.bags, y_test)
    # Its cross-validation was without the answers.
    extra = {**about["extra"], "evaluation": None}
    return _Setting(model, bags, y, [str(c) for c in names], test, extra)


def _is_folder(images: str | None) -> bool:
    """Whether ``--images`` is a folder of pictures, not a dataset of the bag files."""
    return images is not None and Path(images).is_dir()


def _coded(y: Column, names: Sequence[object], classes: Column, path: Path) -> Ints:
    """Labels of a file as classes of the model, which may be coded (see ``fit --positive``)."""
    texts = [str(name) for name in names]
    unknown = [label for label in np.unique(y).tolist() if str(label) not in texts]
    if unknown:
        raise bad_file(path, f"has the label {unknown[0]!r}; the model knows {texts}")
    return np.asarray(classes)[[texts.index(str(label)) for label in np.asarray(y).tolist()]]


def _demo(arguments: Namespace, printer: Printer) -> _Setting:
    """Digit bags: a hundred to label instances in, fifty held out for the curve."""
    from bagwise import VGPMIL
    from bagwise.datasets import load_digit_bags

    cut = _DEMO_BAGS
    data = load_digit_bags(positive=(1,), n_bags=cut + _DEMO_TEST_BAGS, random_state=0)
    pool, test = data.bags[:cut], data.bags[cut:]
    printer.say("Bags of handwritten digits; a bag is positive when it holds a 1.")
    with printer.working("training on bag labels alone"):
        model = VGPMIL(random_state=arguments.seed).fit(pool, data.y[:cut])
    images = (data.images[: pool.n_instances] * 255).astype(np.uint8)
    names = [f"bag_{i:03d}" for i in range(cut)]
    # The labels of the instances are left behind: they are what the page asks for.
    pool = Bags(pool.instances, pool.offsets, names, columns={"images": images})
    arguments.images = "images"
    classes = ["other digit", "one"]
    extra: dict[str, object] = {"name": "labelled", "class_names": classes}
    return _Setting(model, pool, data.y[:cut], classes, CurveBags(test, data.y[cut:]), extra)


def _session(arguments: Namespace, setting: _Setting, journal: Journal) -> Session:
    from bagwise.label import ArrayPictures, FolderPictures, Learner, Session

    pictures: Any = None
    if _is_folder(arguments.images):
        pictures = FolderPictures(arguments.images, setting.bags)
    elif arguments.images is not None:
        images = setting.bags.columns.get("images")
        if images is None:
            what = f"is neither a folder nor a dataset of the files in {arguments.bags}"
            raise bad_file(arguments.images, what)
        pictures = ArrayPictures(images)
    return Session(
        Learner(setting.model, setting.bags, setting.y),
        journal,
        pictures=pictures,
        test=setting.test,
        strategy=arguments.strategy,
        auto=arguments.auto,
        random_state=arguments.seed,
    )


def _serve(arguments: Namespace, session: Session, printer: Printer) -> None:
    needs = "bagwise label needs the extra label"
    make_server = optional("bagwise.label.server", extra="label", what=needs).LabelServer

    def say_next() -> None:
        printer.say(f"opened; to open it in another browser: {escape(server.url)}")

    server = make_server(session, arguments.port, say_next)
    printer.say(f"open [bold]{escape(server.url)}[/bold]")
    printer.say("answers are saved as they come; Ctrl-C ends the server")
    try:
        with nullcontext() if arguments.no_browser else _browser_at(server.url):
            server.run()
    except KeyboardInterrupt:
        printer.say("")
    finally:
        server.close()
    session.wait()


@contextmanager
def _browser_at(url: str) -> Iterator[None]:
    """Open an address by way of a file that only its owner can read.

    The arguments of a browser are shown to all users of a machine.
    """
    handle, name = tempfile.mkstemp(prefix="bagwise-label-", suffix=".html")  # of mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            target = html.escape(f"0; url={url}")
            file.write(f'<!doctype html><meta http-equiv="refresh" content="{target}">')
        webbrowser.open(Path(name).as_uri())
        yield
    finally:
        Path(name).unlink(missing_ok=True)


def _import(path: Path, bags: Bags, classes: Sequence[object], bag: str | None) -> list[Answer]:
    """Answers from GeoJSON (QuPath) or an export of Label Studio, told apart by their content."""
    content = read_json(path)
    listed = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if listed and not any(part.get("type") == "Feature" for part in content):
        labels, source = read_label_studio(path, bags, classes), "label-studio"
    else:
        labels, source = read_geojson(path, bags, classes, bag), "qupath"
    owners, answers = np.asarray(bags.bag_index), []
    for row in np.flatnonzero(labels != None):  # noqa: E711 - elementwise on objects
        i = int(owners[row])
        answer = "yes" if labels[row] == str(classes[1]) else "no"
        answers.append(Answer(str(bags.ids[i]), int(row - bags.offsets[i]), answer, tab=source))
    return answers


def _write_tasks(session: Session, path: Path) -> int:
    """Write the next questions, and all answers, as tasks of Label Studio; returns how many."""
    cards = session.queue("label-studio", _TASKS)
    answered = {
        session.row(*place): session.journal.classes[int(answer == "yes")]
        for place, answer in session.journal.state.items()
        if answer in ("yes", "no")
    }
    rows = np.array([*(card["row"] for card in cards), *answered], dtype=np.int64)
    scores = session.scores()
    known = np.full(session.bags.n_instances, None, dtype=object)
    known[list(answered)] = list(answered.values())
    images = None
    if session.pictures is not None:
        pictures = [session.pictures.read(int(row)) for row in rows]
        images = ["" if picture is None else picture.uri() for picture in pictures]
    write_label_studio(
        path,
        session.bags,
        rows,
        scores.instance[rows],
        scores.instance_std[rows],
        classes=session.journal.classes,
        images=images,
        instance_labels=known,
    )
    return len(rows)
