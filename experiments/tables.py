"""The tables of the README and the guides, each from stored results; see `experiments.figures`.

A function here makes the table of its own name, with hyphens for underscores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bagwise.models.presets import PRESETS
from experiments.stored import results, row, value

SETS = {
    "musk1": "MUSK1",
    "musk2": "MUSK2",
    "elephant": "Elephant",
    "tiger": "Tiger",
    "fox": "Fox",
}
_MUSK = ("musk1", "musk2")
_FIXED = "settings fixed, KFold"
_NESTED = "settings by inner cross-validation, KFold"
_COUPLED = ("alone", "coupled")
_FIVE = f"mean of {', '.join(SETS)}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _bold_best(
    rows: list[list[str]], *, first: int = 1, largest: Mapping[int, bool] | None = None
) -> list[list[str]]:
    """The rows with the best number of each column in bold; the largest unless told otherwise."""
    for column in range(first, len(rows[0])):
        numbers = [float(r[column].split()[0]) for r in rows if r[column]]
        best = max(numbers) if (largest or {}).get(column, True) else min(numbers)
        for r in rows:
            if r[column] and float(r[column].split()[0]) == best:
                r[column] = f"**{r[column]}**"
    return rows


def held_out() -> str:
    """AutoVGPMIL beside MI-SVM and attention networks: AUC on five sets, log-loss, instances."""
    models = {
        "`AutoVGPMIL`": ("auto", "AutoVGPMIL"),
        "MI-SVM (with probabilities)": ("auto", "MI-SVM, Platt"),
        "attention network": ("attention", "attention network"),
        "five attention networks, averaged": ("attention", "five attention networks"),
        "DSMIL network": ("attention", "DSMIL"),
    }
    rows = []
    for name, (experiment, model) in models.items():
        cells = [value(experiment, data, model, "auc") for data in SETS]
        cells += [value(experiment, _FIVE, model, "auc")]
        cells += [value(experiment, _FIVE, model, "log-loss")]
        digits = results("attention")
        has_instances = ((digits["model"] == model) & (digits["metric"] == "instance auc")).any()
        cells += [value("attention", "digits", model, "instance auc") if has_instances else ""]
        rows.append([name, *cells])
    head = ["", *SETS.values(), "mean AUC", "mean log-loss", "digits inside bags, AUC"]
    return _markdown(head, _bold_best(rows, largest={7: False}))


def auto_auc() -> str:
    """AutoVGPMIL beside the best fixed settings of each set and MI-SVM, AUC."""
    others = ("AutoVGPMIL", "MI-SVM, Platt", "all")
    fixed = [m for m in results("auto")["model"].unique() if m not in others]
    ours = ["AutoVGPMIL", *(value("auto", d, "AutoVGPMIL", "auc") for d in SETS)]
    best = ["best fixed settings, chosen on the test bags"]
    best += [max(value("auto", d, model, "auc") for model in fixed) for d in SETS]
    baseline = ["MI-SVM, Platt", *(value("auto", d, "MI-SVM, Platt", "auc") for d in SETS)]
    ours.append(value("auto", _FIVE, "AutoVGPMIL", "auc"))
    baseline.append(value("auto", _FIVE, "MI-SVM, Platt", "auc"))
    return _markdown(["AUC", *SETS.values(), "mean"], [ours, [*best, ""], baseline])


def deep_mnist() -> str:
    """The attention network alone and with a Gaussian process on its features."""
    metrics = ("bag AUC", "bag log-loss", "bag ECE", "instance AUC")
    rows = []
    for size in (8, 32, 128):
        for model in ("AttCNN", "AttCNN + VGPMIL", "AttCNN + G-VGPMIL"):
            data = f"MNIST bags, {size} features"
            cells = [value("deep_mnist", data, model, metric, "±") for metric in metrics]
            rows.append([str(size) if model == "AttCNN" else "", model, *cells])
    return _markdown(["features", "model", *metrics], rows)


def svm() -> str:
    """Accuracy of the support vector machines on bags, beside the published figures."""
    models = {
        "MI-SVM": "MI-SVM",
        'MI-SVM, `slack="instance"`': "MI-SVM, slack per instance",
        "mi-SVM": "mi-SVM",
        "set kernel": "set kernel",
        "single-instance SVM": "single instance SVM",
    }
    sets = ("musk1", "musk2", "elephant")
    rows = [
        [name, *(value("misvm", data, model, "accuracy", "%", "±") for data in sets)]
        for name, model in models.items()
    ]
    for model in ("MI-SVM", "mi-SVM"):
        published = [value("misvm", d, model, "accuracy", "%", "published") for d in sets[:2]]
        rows.append([f"{model}, published", *published, ""])
    return _markdown(["accuracy, %", *(SETS[data] for data in sets)], rows)


def mio() -> str:
    """MIO and MILES on the musk sets, beside the published figures."""
    lines = {
        "MIO, published": (f"MIO [{_FIXED}]", ("%", "published")),
        "MIO, settings fixed": (f"MIO [{_FIXED}]", ("%", "±")),
        'MIO, `passes="refine"`, settings fixed': (f"MIO, refine [{_FIXED}]", ("%", "±")),
        "MIO, settings by inner cross-validation": (f"MIO [{_NESTED}]", ("%", "±")),
        "MILES, published": (f"MILES [{_FIXED}]", ("%", "published")),
        "MILES, settings fixed": (f"MILES [{_FIXED}]", ("%", "±")),
    }
    rows = [
        [
            name,
            *(value("mio_musk", d, model, "accuracy", *options) for d in _MUSK),
        ]
        for name, (model, options) in lines.items()
    ]
    return _markdown(["accuracy, %", "MUSK1", "MUSK2"], rows)


def micrf() -> str:
    """MI-CRF beside the paper's Table 2."""
    models = {
        "(a) single instance SVM, linear": "(a) single instance SVM",
        "(b) `MICRF(dissimilarities=())`": "(b) no pairwise term",
        "(c) `MICRF()`": "(c) MICRF",
        "(d) the same, `predict(bags, joint=True)`": "(d) test bags decided together",
        '(e) `MICRF(C="cv", cv=3)`': "(e) C by CV",
        "(f) `MISVM(C=10)` alone": "(f) MI-SVM",
        '(g) `MICRF(C="cv", cv=3, extra_unaries=[MISVM(C=10)])`': "(g) MICRF with MISVM, C by CV",
    }
    sets = ("musk1", "musk2", "elephant", "fox", "tiger")

    def cell(data: str, model: str) -> str:
        what = ("micrf", data, model, "bag accuracy %")
        return f"{value(*what, '1')} ({value(*what, '1', 'published')})"

    rows = [[name, *(cell(d, model) for d in sets)] for name, model in models.items()]
    return _markdown(["accuracy, % (published)", *(SETS[d] for d in sets)], rows)


# How the table writes `experiments.comparators.verdict`.
_VERDICTS = {
    "within two standard errors": "yes",
    "better": "above",
    "below by more than two standard errors": "**no**",
    "no published figure": "",
}


def comparators_missed() -> str:
    """APR and PPMM on MUSK1, whose published figures are not met, in three ways."""
    ways = {
        "published": ("", ("%", "published")),
        "own decision rule": ("", ("%",)),
        "threshold calibrated on training bags": (", calibrated", ("%",)),
        "settings searched on the test folds, an oracle": (", settings by test folds", ("%",)),
    }
    models = ("APR", "PPMM")
    rows = [
        [way, *(value("comparators", "musk1", m + suffix, "accuracy", *how) for m in models)]
        for way, (suffix, how) in ways.items()
    ]
    auc = [value("comparators", "musk1", m, "auc", "%") for m in models]
    rows.append(["AUC, which needs no threshold", *auc])
    return _markdown(["accuracy on MUSK1, %", *(f"`{m}`" for m in models)], rows)


def attention_oracle() -> str:
    """Attention networks without a leak, and with choices made on the test bags."""
    from experiments.attention_oracle import NOTES

    rows = [
        [
            f"{way} ({NOTES[way].partition(':')[0].replace('honest', 'leakage-free')})",
            *(
                value("attention_oracle", d, f"attention network, {way}", "accuracy", "%", "±")
                for d in SETS
            ),
        ]
        for way in NOTES
    ]
    way = next(iter(NOTES))
    published = [
        value("attention_oracle", d, f"attention network, {way}", "accuracy", "%", "published")
        for d in SETS
    ]
    rows.append(["published, gated attention", *published])
    return _markdown(["accuracy, %", *SETS.values()], rows)


def _psi_sets() -> list[str]:
    """Sets of which Tables 6 and 7 of the psi-VGPMIL paper have a stored run."""
    return [str(name) for name in results("psi_vgpmil")["data"].unique()]


def mixed_supervision() -> str:
    """Instance average precision by the share of bags that are fully labelled."""
    models = results("mixed_supervision")["model"].unique()
    rows = [
        [
            f"{share} %",
            *(
                value(
                    "mixed_supervision",
                    f"digits, {share}% of the bags fully labelled",
                    model,
                    "instance AP",
                    "±",
                )
                for model in models
            ),
        ]
        for share in (0, 5, 10, 20, 50, 100)
    ]
    return _markdown(
        ["bags fully labelled", *(m.replace("witness", "key instance") for m in models)], rows
    )


def presets() -> str:
    """Every preset: its settings, and where each stands."""
    blocks = []
    for name, (title, model, settings, stopping) in PRESETS.items():
        rows = [[f"`{key}`", f"`{value!r}`", source] for key, (value, source) in settings.items()]
        rows += [
            [f"`fit(..., {key}=)`", f"`{value!r}`", source]
            for key, (value, source) in stopping.items()
        ]
        table = _markdown(["setting", "value", "where it stands"], rows)
        blocks.append(f"### `{name}`\n\n{title}: a `{model.__name__}`.\n\n{table}")
    return "\n\n".join(blocks)


def dpmil_newsgroups() -> str:
    """DPMIL on 20 Newsgroups."""
    models = {
        "ranking by length, no training": "norm baseline",
        "DPMIL, the paper's prior and one start, kernel PCA of all posts": "DPMIL, paper",
        "DPMIL, prior 0.1 I and two starts, kernel PCA of all posts, labels unseen": "DPMIL",
        "DPMIL, kernel PCA inside the fold": "DPMIL, in fold",
        "DPMIL, kernel PCA inside the fold, 200 dimensions": "DPMIL, in fold, 200-d",
        "DPMIL, inside the fold, plus the residual length (not in the paper)": (
            "DPMIL, in fold, residual"
        ),
        "DPMIL, L2-normalised rows, kernel PCA of all posts": "DPMIL, L2 rows",
        "DPMIL, L2-normalised rows, kernel PCA inside the fold": "DPMIL, L2 rows, in fold",
    }
    metrics = {"mean of folds": "AP, mean of folds", "pooled": "AP, pooled"}
    rows = [
        [name, *(value("dpmil_newsgroups", "mean of 20 sets", model, m) for m in metrics.values())]
        for name, model in models.items()
    ]
    return _markdown(["model", *metrics], rows)


def dpmil_calibration() -> str:
    """Bag probabilities of DPMIL, as published and calibrated."""
    metrics = {
        "log loss": "log loss",
        "calibration error": "expected calibration error",
        "bag accuracy": "bag accuracy",
    }
    sets = ("MUSK1", "Elephant", "Fox")
    rows = []
    for rule in ("max", "noisy-or"):
        for name, metric in metrics.items():
            cells = [
                value("dpmil_calibration", data, f"DPMIL, {rule}, {kind}", metric, "2")
                for data in sets
                for kind in ("as published", "calibrated")
            ]
            rows.append([f"`{rule}`: {name}", *cells])
    head = [f"{data} {kind}" for data in sets for kind in ("as published", "calibrated")]
    return _markdown(["", *head], rows)


def ct() -> str:
    """Synthetic CT scans."""
    data = "60 synthetic CT scans, 64 x 64"
    metrics = ("bag AUC", "bag accuracy", "bag log-loss", "bag ECE", "instance AUC")
    names = ("scan AUC", "scan accuracy", "scan log-loss", "scan ECE", "slice AUC")
    rows = [
        [model, *(value("ct_synthetic", data, model, metric, "±") for metric in metrics)]
        for model in ("AttCNN", "AttCNN + G-VGPMIL", "AttCNN + VGPMIL")
    ]
    return _markdown(["model", *names], rows)


def ct_std() -> str:
    """How far the standard deviation of the CT models can be trusted."""
    metrics = {
        "predicted latent std": ("latent std, predicted", "2"),
        "std of the latent mean over fits": ("latent std, over fits", "2"),
        "mean std of p, right slices": ("mean std, right slices", "2"),
        "wrong slices": ("mean std, wrong slices", "2"),
    }
    data = "60 synthetic CT scans, 64 x 64"
    rows = [
        [model, *(value("ct_synthetic", data, model, *what) for what in metrics.values())]
        for model in ("AttCNN + G-VGPMIL", "AttCNN + VGPMIL")
    ]
    return _markdown(["model", *metrics], rows)


def patients() -> str:
    """Patients as bags of slides, beside slides that inherit the patient's label."""
    data, models = "60 simulated patients", ("patients as bags", "slides inherit the label")
    levels = {"patients": "patient AUC", "slides": "slide AUC", "patches": "patch AUC"}
    rows = [
        [level, *(value("patients", data, model, metric, "±") for model in models)]
        for level, metric in levels.items()
    ]
    return _markdown(["AUC of held-out", "patients as bags", "slides inherit the label"], rows)


def coupling() -> str:
    """Instances alone and coupled to their neighbours."""
    what = {
        f"{name}, {model}": (model, f"instance {name}")
        for name in ("AUC", "AP")
        for model in _COUPLED
    }
    rows = []
    for data in results("coupling")["data"].unique():
        cells = [value("coupling", data, *key) for key in what.values()]
        rows.append([str(data), *cells, value("coupling", data, "coupled", "strength", "1")])
    return _markdown(["held-out instances", *what, "strength chosen"], rows)


def regret() -> str:
    """Regret of MIO on a stream by its length."""
    lengths = (250, 500, 1000, 2000, 4000, 8000)
    metrics = {
        "regret / √T": ("regret/sqrt(T)", "±", "2"),
        "average regret": ("regret/T", "3"),
        "share of instances with a weight": ("selected", "2"),
    }
    rows = [
        [name, *(value("mio_regret", f"two concepts, T = {t}", "MIO", *what) for t in lengths)]
        for name, what in metrics.items()
    ]
    return _markdown(["T", *map(str, lengths)], rows)


def assumptions() -> str:
    """Clean and trap AUC of every model in the unit tests of the MIL assumption."""
    stored = results("assumptions")
    tests = tuple(stored["data"].unique())
    rows = []
    for model in stored["model"].unique():
        cells = []
        for test in tests:
            clean = value("assumptions", test, model, "AUC, clean test bags", "2")
            trap = value("assumptions", test, model, "AUC, trap test bags", "2")
            cells.append(f"{clean} / {trap}")
        notes = stored.loc[stored["model"] == model, "note"].dropna()
        claims = "embedding" if notes.str.contains("claims no such").any() else "standard"
        fails = notes.str.startswith("fails").any()
        rows.append([f"`{model}`", claims, *cells, "fails" if fails else "passes"])
    head = ["model", "claims", *(f"{test}: clean / trap" for test in tests), "all of them"]
    return _markdown(head, rows)


def ablation() -> str:
    """What changes without each rule, over the sets that it concerns."""
    from experiments.ablation import METRICS, TOGETHER

    stored = results("ablation")
    alone = {data for members in TOGETHER.values() for data in members}
    stored = stored[~stored["data"].isin(alone) & stored["metric"].str.endswith("difference")]
    rows = []
    for (data, rule), part in stored.groupby(["data", "model"], sort=False):
        measured = set(part["metric"])
        keys = [f"{metric}, difference" for metric in METRICS]
        cells = [value("ablation", data, rule, k, "±") if k in measured else "" for k in keys]
        name = rule.replace("share map", "calibrator of instances")
        rows.append([name, data, *cells, str(part["n_seeds"].max())])
    return _markdown(["", "data", *METRICS, "fits"], rows)


def latent_coverage() -> str:
    """The posterior against an exact sampler."""
    metrics = {
        "true values in 90 % intervals": "coverage",
        "standard deviation, ratio": "sd ratio",
        "standard deviation, correlation": "sd correlation",
        "instance probability, distance": "instances",
        "probability of a new bag, distance": "bags",
    }
    rows = [
        [name, *(value("posterior_coverage", f"v = {v}", "marginal", metric) for v in (1, 4, 16))]
        for name, metric in metrics.items()
    ]
    return _markdown(["", "variance 1", "4", "16"], rows)


def photographs() -> str:
    """CorLoc and AP in photographs, of the detector and of boxes that need no training."""
    ways = {
        "whole image": "whole image",
        "centre box, 80 %": "centre 80 %",
        "centre box, 60 %": "centre 60 %",
        "objectness alone (best closed contour)": "objectness alone",
        "saliency alone (largest component)": "saliency alone",
        "`PhotographDetector()` without the networks": "PhotographDetector without networks",
        "`PhotographDetector()`": "PhotographDetector",
    }
    sets = {
        "raccoon": "animals: raccoon",
        "kangaroo": "animals: kangaroo",
        "scenes": "scenes: mean",
    }
    rows = [
        [name]
        + [
            value("detection_photographs", data, way, metric, "2")
            for data in sets.values()
            for metric in ("CorLoc", "AP")
        ]
        for name, way in ways.items()
    ]
    head = [""] + [f"{name} {metric}" for name in sets for metric in ("CorLoc", "AP")]
    return _markdown(head, rows)


def box_probability() -> str:
    """What the probability of a box says and what is true, by class left out."""
    sets = ("raccoon", "kangaroo", "person", "animal", "vehicle", "kitchenware", "all classes")
    metrics = {
        "boxes at 0.3 or more": "0",
        "their mean probability, 0.3": "2",
        "share right, 0.3": "2",
        "boxes at 0.5 or more": "0",
        "their mean probability, 0.5": "2",
        "share right, 0.5": "2",
        "objects found in images with several, 0.3": "2",
    }
    rows = [
        [name]
        + [
            value("detection_probability", name, "PhotographDetector", metric, digits)
            for metric, digits in metrics.items()
        ]
        for name in sets
    ]
    head = ["class left out", "boxes shown (0.3)", "mean probability", "share right"]
    head += ["boxes above 0.5", "mean probability", "share right", "objects found among several"]
    return _markdown(head, rows)


def bccd() -> str:
    """Platelets in blood smears, with and without contrast."""
    from experiments.detection_bccd import SETTINGS

    rows = []
    for name, setting in SETTINGS.items():
        words = ", ".join(f"{k}={v}" for k, v in setting.items() if v is not None)
        cells = (
            value("detection_bccd", "Platelets", f"VGPMIL, {name}", metric, "±", "2")
            for metric in ("CorLoc", "AP")
        )
        rows.append([name, f"`{words}`", *cells])
    return _markdown(["MobileNetV2 regions, blobs", "settings", "CorLoc", "AP"], rows)


def digits() -> str:
    """Digits on clutter, with and without contrast and true boxes."""
    rows = []
    for name in ("without contrast", "with contrast"):
        for share in ("0%", "10%"):
            names = results("detection_digits")["data"].unique()  # they say which digits were used
            data = next(str(name) for name in names if name.endswith(f"boxes for {share}"))
            cells = (
                value("detection_digits", data, f"VGPMIL, {name}", metric, "±", "2")
                for metric in ("CorLoc", "AP")
            )
            rows.append([name, share.replace("%", " %"), *cells])
    return _markdown(["HOG and colour, blobs", "boxes for", "CorLoc", "AP"], rows)


def detection_mixed() -> str:
    """AP on platelets by the share of positive images with boxes, with every seed."""
    rows = []
    for share in ("0%", "10%", "25%", "50%", "100%"):
        cells = []
        for name in ("without contrast", "with contrast"):
            key = ("detection_mixed", f"boxes for {share}", f"VGPMIL, {name}", "AP")
            cells += [value(*key), str(row(*key)["note"])]
        rows.append([share.replace("%", " %"), *cells])
    return _markdown(
        ["boxes for", "without contrast", "each seed", "with contrast", "each seed"], rows
    )


def tracking() -> str:
    """Centre error of the trackers on every sequence, the worst seed of ours, and time."""
    from experiments._clips import KINDS
    from experiments.tracking import FILMED, TRACKERS

    rows = []
    for name in (*FILMED, *KINDS):
        cells = [value("tracking", name, t, "centre error, px", "2") for t in TRACKERS]
        worst = value("tracking", name, "MIO", "worst seed / median", "2")
        overlaps = [value("tracking", name, t, "overlap", "2") for t in TRACKERS]
        rows.append([name, *cells, worst, *overlaps])
    head = ["", *(f"{t}, px" for t in TRACKERS), "MIO, worst seed / median"]
    return _markdown([*head, *(f"{t}, overlap" for t in TRACKERS)], rows)


def reproduction() -> str:
    """How many printed figures of each table of the papers are reached."""
    table = results("published").query("verdict != 'not compared'")
    rows = []
    for (paper, where), group in table.groupby(["paper", "table"], sort=False):
        counts = group["verdict"].value_counts()
        reached = int(counts.get("reached", 0) + counts.get("above", 0))
        missing = f"{counts.get('below', 0)}", f"{counts.get('not run', 0)}"
        rows.append([paper, where, str(len(group)), str(reached), *missing])
    return _markdown(["paper", "table", "printed figures", "reached", "below", "not run"], rows)


def shortfalls() -> str:
    """The most frequent reasons why ours lie below printed figures."""
    below = results("published").query("verdict == 'below'")
    counts = below["why"].value_counts().head(6)
    return _markdown(["figures", "reason"], [[str(n), why] for why, n in counts.items()])
