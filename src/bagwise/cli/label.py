"""``bagwise label``: read bags and model, start the page, leave labels behind."""

from __future__ import annotations

import html
import os
import tempfile
import webbrowser
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.markup import escape

from bagwise.bags import Bags
from bagwise.cli.console import Printer
from bagwise.cli.inputs import file_names
from bagwise.files import BadFilesError, Names, read_bags, read_labels, read_training, scan_bags
from bagwise.files.problems import bad_file
from bagwise.label.session import CurveBags

if TYPE_CHECKING:
    from bagwise.core.arrays import Column, Ints
    from bagwise.label.journal import Answer, Journal
    from bagwise.label.session import Session
    from bagwise.models.base import Model


# Bags of the demo that instances are labelled in.
_DEMO_BAGS = 100


class _Setting(NamedTuple):
    """Everything a session needs."""

    model: Model
    bags: Bags
    y: Column | None
    class_names: list[str]
    test: CurveBags | None
    feature_names: Sequence[str] | None


def label(arguments: Namespace) -> int:
    """Start the page, or exchange labels with other tools."""
    printer = Printer(arguments.json)
    _check_arguments(arguments)
    setting = _demo(arguments, printer) if arguments.demo else _from_files(arguments, printer)
    from bagwise.label import Journal
    from bagwise.label.journal import check_ids

    check_ids(setting.bags.ids)
    answers = _read_import(arguments, setting)  # first: a bad file must not leave a journal
    with Journal(arguments.out, setting.class_names) as journal:
        if arguments.import_file is not None:
            _import(arguments, answers, journal, printer)
        if arguments.export_only and arguments.label_studio is None:
            journal.write_table()
            printer.say(f"wrote {escape(str(arguments.out))}")
            printer.result({"out": str(arguments.out), "answers": len(journal.state)})
            return 0
        with printer.working("projecting the instances once"):
            session = _session(arguments, setting, journal)
        if arguments.label_studio is not None:
            return _label_studio(arguments, session, printer)
        _serve(arguments, session, printer)
        if arguments.save_model is not None:
            _save(arguments, session, setting, printer)
        state = session.state()
        printer.say(f"{state['n_yes']} yes, {state['n_no']} no in {escape(str(arguments.out))}")
        printer.result({"out": str(arguments.out), "yes": state["n_yes"], "no": state["n_no"]})
    return 0


def _check_arguments(arguments: Namespace) -> None:
    if arguments.demo:
        arguments.out = arguments.out or Path("demo-labels.csv")
    elif arguments.model is None or arguments.bags is None:
        raise ValueError("label needs a model file and --bags, or --demo.")
    if arguments.out is None:
        raise ValueError("label needs --out, the CSV that the instance labels go to.")
    if (arguments.test_bags is None) != (arguments.test_labels is None):
        raise ValueError("--test-bags and --test-labels go together.")
    if arguments.auto < 0:
        raise ValueError(f"--auto must be 0 or more; got {arguments.auto}.")


def _from_files(arguments: Namespace, printer: Printer) -> _Setting:
    from bagwise import persist
    from bagwise.label import CurveBags

    about, model = persist.about(arguments.model), persist.load(arguments.model)
    names = about["extra"].get("class_names") or list(model.classes_)
    data_names = file_names(arguments)
    if arguments.images is not None and Path(arguments.images).is_dir():
        data_names = _with_images(data_names, None)
    y = None
    if arguments.labels is None:
        scan = scan_bags(arguments.bags, data_names, progress=printer.bar("reading bags"))
        if scan.bags is None or (scan.problems and not arguments.skip_bad):
            raise BadFilesError(scan.problems)
        bags, feature_names = scan.bags, scan.bags.feature_names
    else:
        data = read_training(
            arguments.bags,
            arguments.labels,
            data_names,
            skip_bad=arguments.skip_bad,
            progress=printer.bar("reading bags"),
        )
        bags, feature_names = data.bags, data.bags.feature_names
        y = _coded(data.y, names, model.classes_, arguments.labels)
    test = None
    if arguments.test_bags is not None:
        labels = read_labels(arguments.test_labels, arguments.id_column, arguments.label_column)
        by_id = dict(zip(labels.ids, labels.y, strict=True))
        test_bags = read_bags(arguments.test_bags, _with_images(data_names, None))
        missing = [name for name in test_bags.ids if str(name) not in by_id]
        if missing:
            raise bad_file(arguments.test_labels, f"has no label for bag {missing[0]!r}")
        raw = np.array([by_id[str(name)] for name in test_bags.ids])
        test = CurveBags(test_bags, _coded(raw, names, model.classes_, arguments.test_labels))
    printer.say(f"read {bags!r} from {escape(str(arguments.bags))}")
    return _Setting(model, bags, y, [str(c) for c in names], test, feature_names)


def _with_images(names: Names, images: str | None) -> Names:
    from dataclasses import replace

    return replace(names, images=images)


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
    from bagwise.label import CurveBags

    data = load_digit_bags(positive=(1,), n_bags=_DEMO_BAGS + 50, random_state=0)
    cut = _DEMO_BAGS
    bags = data.bags.with_columns(images=(data.images * 255).astype(np.uint8))
    printer.say("Bags of handwritten digits; a bag is positive when it holds a 1.")
    with printer.working("training on bag labels alone"):
        model = VGPMIL(random_state=arguments.seed).fit(bags[:cut], data.y[:cut])
    pool = bags[:cut]
    columns = {k: v for k, v in pool.columns.items() if k != "instance_labels"}
    from bagwise import Bags

    pool = Bags(pool.instances, pool.offsets, [f"bag_{i:03d}" for i in range(cut)], columns=columns)
    arguments.images = "images"
    names = ["other digit", "one"]
    return _Setting(model, pool, data.y[:cut], names, CurveBags(bags[cut:], data.y[cut:]), None)


def _session(arguments: Namespace, setting: _Setting, journal: Journal) -> Session:
    from bagwise.label import ArrayPictures, FolderPictures, Learner, Session

    pictures: Any = None
    if arguments.images is not None:
        if Path(arguments.images).is_dir():
            pictures = FolderPictures(arguments.images, setting.bags)
        else:
            images = setting.bags.columns.get("images")
            if images is None:
                what = f"is neither a folder nor a dataset of the files in {arguments.bags}"
                raise bad_file(arguments.images, what)
            pictures = ArrayPictures(images)
    return Session(
        Learner(setting.model, setting.bags, setting.y),
        journal,
        pictures=pictures,
        feature_names=setting.feature_names,
        class_names=setting.class_names,
        test=setting.test,
        strategy=arguments.strategy,
        auto=arguments.auto,
        random_state=arguments.seed,
    )


def _serve(arguments: Namespace, session: Session, printer: Printer) -> None:
    try:
        from bagwise.label import LabelServer
    except ImportError as error:
        raise ValueError("bagwise label needs a server: pip install 'bagwise[label]'") from error

    def say_next() -> None:
        printer.say(f"opened; to open it in another browser: {escape(server.url)}")

    server = LabelServer(session, arguments.port, say_next)
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


def _save(arguments: Namespace, session: Session, setting: _Setting, printer: Printer) -> None:
    from bagwise import persist

    extra: dict[str, object] = {"name": "labelled", "class_names": setting.class_names}
    if arguments.model is not None:
        extra = {**persist.about(arguments.model)["extra"], "evaluation": None}
    persist.save(session.fitted_model(), arguments.save_model, bags=setting.bags, extra=extra)
    printer.say(f"saved {escape(str(arguments.save_model))}")


def _read_import(arguments: Namespace, setting: _Setting) -> list[Answer]:
    from bagwise.label.exchange import import_file

    if arguments.import_file is None:
        return []
    return import_file(arguments.import_file, setting.bags, setting.class_names, arguments.bag)


def _import(
    arguments: Namespace, answers: list[Answer], journal: Journal, printer: Printer
) -> None:
    new = 0
    for answer in answers:
        if journal.state.get((answer.bag, answer.index)) != answer.answer:
            journal.add(answer, table=False)
            new += 1
    journal.write_table()
    printer.say(f"took {new} labels from {escape(str(arguments.import_file))}")


def _label_studio(arguments: Namespace, session: Session, printer: Printer) -> int:
    from bagwise.label.exchange import write_tasks

    n = write_tasks(session, arguments.label_studio)
    printer.say(f"wrote {n} tasks to {escape(str(arguments.label_studio))}")
    printer.result({"tasks": n, "file": str(arguments.label_studio)})
    return 0
