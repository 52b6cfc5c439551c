"""Fuzz every command: ``python -m tests.fuzz --cases 10000``; prints counts and what broke.

Three quarters of the cases spoil one valid file (h5, npz, pt, zarr, csv, xlsx, parquet, png, json,
geojson, model) for a command that reads it; the rest are odd arguments and label files from
hypothesis. A case is broken by a traceback or an unexpected error, more than 30 s of processor time
(or ten times that on the clock), a peak over 2 GB, a write outside the output, or a partial output.
The exit code is 1 when any case broke.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.corpus import FAST, LABELS, OUT, TEMPLATES, Case
from tests.fuzz.mutate import WORDS, mutators
from tests.fuzz.runner import Outcome, Runner


def mutated(corpus: Path, seed: int, count: int) -> Iterator[Case]:
    """Cases with one file spoiled."""
    valid = {file: (corpus / file).read_bytes() for file, _ in TEMPLATES}
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        file, words = rng.choice(TEMPLATES)
        kind, spoil = mutators(file)
        name = rng.choice(sorted(spoil))
        content = spoil[name](valid[file], rng)
        yield Case(f"{kind} by {name}", words, {file: content})


TEXT = st.one_of(st.sampled_from(WORDS), st.text(max_size=12)).filter(lambda t: "\x00" not in t)
NUMBER = st.one_of(st.integers(-(2**40), 2**40), st.integers(-2, 12), st.floats()).map(str)
VALUE = st.one_of(TEXT, NUMBER)
SETTING = st.tuples(
    st.sampled_from(
        ["n_inducing", "max_iter", "scale", "random_state", "tol", "calibrate", "kernel"]
    ),
    st.one_of(
        st.sampled_from(["None", "0", "-1", "3", "1e-3", "True", "[]", "'x'", "max", "(1,)"]), TEXT
    ),
).map("=".join)
OPTIONS = {
    "fit": ["--seed", "--cv", "--positive", "--model", "--features", "--id-column",
            "--label-column", "--patient-column", "--encoder", "--instance-labels", "--coords",
            "--max-unpacked"],
    "predict": ["--threshold", "--images", "--features", "--id-column", "--coords", "--labels",
                "--top", "--patients", "--patient-column", "--cost", "--min-sensitivity",
                "--min-specificity"],
    "evaluate": ["--features", "--label-column", "--coords", "--patient-column", "--cost",
                 "--min-sensitivity"],
    "compare": ["--cv", "--seeds", "--models", "--jobs", "--datasets"],
    "detect fit": ["--n-boxes", "--contrast", "--seed", "--split"],
    "track": ["--box", "--seed"],
    "info": ["--max-unpacked"],
    "datasets": [],
    "demo": ["--bags"],
}  # fmt: skip
BASE = {
    "fit": ("fit", "--bags", "h5", *LABELS, *FAST, *OUT),
    "predict": ("predict", "model.bagwise", "--bags", "h5", *OUT),
    "evaluate": ("evaluate", "model.bagwise", "--bags", "h5", *LABELS),
    "compare": ("compare", "--bags", "h5", *LABELS, "--models", "single-instance", *OUT),
    "detect fit": ("detect", "fit", "--images", "images", "--labels", "image-labels.csv", *OUT),
    "track": ("track", "images", "--box", "8,8,16,16", "--csv", "out"),
    "info": ("info", "model.bagwise"),
    "datasets": ("datasets",),
    "demo": ("demo", "--out", "out", "--bags", "1"),
}  # fmt: skip
# Heavy or fixed commands get few cases; the others share the rest.
COMMANDS = [*(["fit"] * 6), *(["predict"] * 4), *(["evaluate"] * 3), "compare", "track", "info"]
COMMANDS = [*(COMMANDS * 3), "detect fit", "datasets", "demo"]


def _bounded(option: str, value: str) -> bool:
    """Whether a value asks for a computation that may honestly take long, or for many processes."""
    try:
        number = float(value)
    except ValueError:
        return True
    return option not in ("--jobs", "--seeds", "--n-boxes", "--bags", "--cv") or abs(number) <= 12


@st.composite
def odd_cases(draw: Callable[..., object]) -> Case:
    """Odd options, odd settings, and label files of any text."""
    command = str(draw(st.sampled_from(COMMANDS)))
    words = list(BASE[command])
    files: dict[str, bytes] = {}
    for _ in range(int(str(draw(st.integers(0, 2))))):
        if not OPTIONS[command]:
            break
        option = str(draw(st.sampled_from(OPTIONS[command])))
        value = str(draw(VALUE.filter(lambda v, option=option: _bounded(option, v))))
        words += [option + "=" + value]
    if command == "fit" and draw(st.booleans()):
        words += ["--set=" + str(draw(SETTING))]
    if "labels.csv" in words and draw(st.booleans()):
        names = [f"a{i}" for i in range(12)]
        labels = draw(st.lists(VALUE, min_size=2, max_size=2))
        rows = [f"{name},{labels[i % 2]}" for i, name in enumerate(names)]  # type: ignore[index]
        if draw(st.booleans()):
            rows[0] = f"{draw(VALUE)},{draw(VALUE)}"
        text = "\n".join(["slide_id,label", *rows])
        files["labels.csv"] = text.encode("utf-8", "surrogatepass")
    return Case(f"{command} by hypothesis", tuple(words), files)


class Tally:
    """Counts of what happened, and every case that broke something."""

    def __init__(self, total: int) -> None:
        self.total, self.start = total, time.perf_counter()
        self.kinds: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.broken: list[tuple[Case, Outcome]] = []
        self.slowest, self.largest = 0.0, 0

    def add(self, case: Case, outcome: Outcome) -> None:
        """Count one case."""
        self.kinds[case.kind] += 1
        self.ends[outcome.broken or f"exit code {outcome.code}"] += 1
        self.slowest = max(self.slowest, outcome.seconds)
        self.largest = max(self.largest, outcome.peak)
        if outcome.broken:
            self.broken.append((case, outcome))
            print(f"BROKEN {outcome.broken}: {case.kind}: {' '.join(case.words)[:300]}", flush=True)
            print("   " + outcome.detail.strip()[-1500:].replace("\n", "\n   "), flush=True)
        done = sum(self.kinds.values())
        if done % 500 == 0:
            seconds = time.perf_counter() - self.start
            print(f"{done} of {self.total} cases in {seconds:.0f} s: {dict(self.ends)}", flush=True)

    def report(self) -> None:
        """Print everything."""
        for kind, count in sorted(self.kinds.items()):
            print(f"{count:6d}  {kind}")
        print(f"{sum(self.kinds.values())} cases in {time.perf_counter() - self.start:.0f} s")
        for end, count in sorted(self.ends.items()):
            print(f"{count:6d}  {end}")
        print(f"slowest case {self.slowest:.1f} s, largest peak {self.largest / 1e9:.2f} GB")
        print(f"{len(self.broken)} broken")


def fuzz(cases: int, seed: int, save: Path | None = None) -> Tally:
    """Run the cases and count."""
    tally = Tally(cases)
    from_hypothesis = cases // 4
    with Runner() as runner:

        def judge(case: Case) -> None:
            outcome = runner.run(case)
            tally.add(case, outcome)
            if outcome.broken and save is not None:
                folder = save / f"{len(tally.broken):04d}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "command.txt").write_text("\n".join([*case.words, outcome.detail]))
                for name, content in case.files.items():
                    (folder / Path(name).name).write_bytes(content)

        for case in mutated(runner.corpus(), seed, cases - from_hypothesis):
            judge(case)
        if from_hypothesis:
            run = hypothesis.seed(seed)(given(odd_cases())(judge))
            settings(
                max_examples=from_hypothesis,
                phases=[Phase.generate],
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )(run)()
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, help="folder for the files of broken cases")
    options = parser.parse_args()
    result = fuzz(options.cases, options.seed, options.save)
    result.report()
    sys.exit(bool(result.broken))
