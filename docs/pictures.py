"""Draw the pictures of the documentation: ``python docs/pictures.py [NAME ...]``.

Every picture is written for light and for dark pages, ``_static/NAME.png`` and ``NAME-dark.png``.
Probabilities have the colours of the report. ``report`` photographs `report.html` in a browser
(``pip install playwright``, and a Chromium).
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyBboxPatch

from bagwise import VGPMIL, AutoVGPMIL, Bags
from bagwise.datasets import load_digit_bags
from bagwise.report.plots import probability_colours

ROOT = Path(__file__).parent.parent
OUT = Path(__file__).parent / "_static"
PROBABILITY = probability_colours()
LIGHT = {
    "ink": "#1d2530",
    "paper": "#ffffff",
    "soft": "#55606e",
    "pos": "#b83a0e",
    "neg": "#2456a6",
}
DARK = {"ink": "#e9ecf0", "paper": "#14181e", "soft": "#a3aebb", "pos": "#ff9a6b", "neg": "#8fb8ff"}
INK = dict(LIGHT)  # the colours of the page that is drawn


def save(draw, name, shows=""):
    """A picture on light and on dark paper; ``shows`` are its numbers, for the tests."""
    for colours, ending in ((LIGHT, ""), (DARK, "-dark")):
        INK.update(colours)
        ink = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK["ink"])
        ink |= dict.fromkeys(("xtick.color", "ytick.color", "legend.labelcolor"), INK["ink"])
        paper = dict.fromkeys(("figure.facecolor", "axes.facecolor"), INK["paper"])
        with mpl.rc_context({**ink, **paper, "legend.frameon": False, "font.size": 11}):
            figure = draw()
            path, about = OUT / f"{name}{ending}.png", {"Description": shows}
            figure.savefig(path, dpi=110, bbox_inches="tight", metadata=about)
            plt.close(figure)


def readme():
    """The names that the code of the README makes: its model, bags and labels."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = next(b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if ">>>" in b)
    code = "\n".join(line[4:] for line in block.splitlines() if line[:4] in (">>> ", "... "))
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "README.md", "exec"), names)
    shown = [int(n) for n in re.search(r"predict_proba\(bags\[(\d+):(\d+)\]\)", block).groups()]
    return names["model"], names["bags"], names["y"], range(*shown)


def draw_bag(axes, bag, left, top, color):
    """One bag as a card of digits."""
    width = len(bag)
    card = FancyBboxPatch(
        (left - 0.15, top - 1.15),
        width + 0.3,
        1.3,
        boxstyle="round,pad=0.02,rounding_size=0.16",
        facecolor="white",
        edgecolor=color,
        linewidth=2,
        zorder=-1,
    )
    axes.add_patch(card)
    for i, digit in enumerate(bag):
        extent = (left + i + 0.08, left + i + 0.92, top - 0.92, top - 0.08)
        axes.imshow(digit.reshape(8, 8), extent=extent, cmap="gray_r", interpolation="bicubic")


def probability_of(axes, p, x, y, *, size=12):
    """A probability on its colour in the report."""
    colour = PROBABILITY(p)
    text = "white" if sum(colour[:3]) < 1.5 else "#1d2530"
    box = {"boxstyle": "round,pad=0.25", "facecolor": colour, "edgecolor": "none"}
    axes.text(x, y, f"{p:.2f}", ha="center", va="center", fontsize=size, color=text, bbox=box)


def mil():
    """What the code of the README learns from, and what it prints."""
    model, bags, y, shown = readme()
    p_bag, p = model.predict_proba(bags)[:, 1], model.predict_proba_instances(bags)[:, 1]
    truth = load_digit_bags().instance_labels
    small = np.flatnonzero(bags.sizes[:105] == bags.sizes[shown[0]])
    train = [next(i for i in small if y[i] == 1), next(i for i in small if y[i] == 0)]
    train.append([i for i in small if y[i] == 1][1])
    step, right = 2.05, bags.sizes[train].max() + 4.2

    def draw():
        figure, axes = plt.subplots(figsize=(14, 5.4))
        for row, i in enumerate(train):
            color = INK["pos"] if y[i] else INK["neg"]
            draw_bag(axes, bags[i], 0, -row * step, color)
            words = "label: holds a nine" if y[i] else "label: holds none"
            axes.text(-0.1, -row * step - 1.52, words, color=color, fontsize=13, weight="bold")
        for row, i in enumerate(shown):
            top = -row * step
            color = INK["pos"] if p_bag[i] > 0.5 else INK["neg"]
            draw_bag(axes, bags[i], right, top, color)
            axes.text(right + len(bags[i]) + 0.5, top - 0.5, "bag", fontsize=13, va="center")
            probability_of(axes, p_bag[i], right + len(bags[i]) + 1.7, top - 0.5, size=14)
            for k in range(len(bags[i])):
                n, x = bags.offsets[i] + k, right + k + 0.5
                probability_of(axes, p[n], x, top - 1.5)
                if truth[n] == 1:
                    axes.plot([x - 0.3, x + 0.3], [top - 1.0] * 2, color=INK["pos"], linewidth=3)
        heads = {"What you have: labelled bags": 0, "What you get: probabilities": right}
        for words, left in heads.items():
            axes.text(left - 0.1, 0.55, words, fontsize=15, weight="bold")
        arrow = {"arrowstyle": "-|>", "linewidth": 2.5, "color": INK["ink"], "mutation_scale": 24}
        start, middle = right - 4.2 + 0.8, -step - 0.5
        axes.annotate("", (right - 0.6, middle), (start, middle), arrowprops=arrow)
        centre = (start + right - 0.6) / 2
        axes.text(centre, middle + 0.25, "fit(bags, y)", ha="center", family="monospace")
        axes.set(xlim=(-0.4, right + 9.2), ylim=(-3 * step + 0.2, 1.0), aspect="equal")
        axes.set_axis_off()
        return figure

    rows = slice(*bags.offsets[shown[1] : shown[1] + 2])
    numbers = [*p_bag[shown[0] : shown[-1] + 1], *p[rows]]
    save(draw, "mil", " ".join(f"{number:.2f}" for number in numbers))


def identifiability():
    """Two truths with the same bag labels, and the answers to both questions."""
    rng = np.random.default_rng(0)
    arrays, labels = [], np.arange(60) % 2
    for label in labels:
        rows = rng.normal(size=(12, 2))
        if label:
            rows[:5] = np.array([3.2, 0.0]) + 0.35 * rng.normal(size=(5, 2))
        arrays.append(rows)
    bags = Bags.from_list(arrays)
    model = VGPMIL(n_inducing=40, random_state=0).fit(bags, labels)
    share = model.predict_proba_instances(bags[1:2])[:, 1]
    alone = model.predict_proba_instances(bags[1:2], question="alone")[:, 1]
    one, all_of = np.zeros(12), np.zeros(12)
    one[0], all_of[:5] = 1, 1
    panels = {
        "possible truth A:\none instance is positive": one,
        "possible truth B:\nall five are positive": all_of,
        'reported, question="alone":\nwould it make a bag positive?': alone,
        'reported, question="share":\ndid it make this bag positive?': share,
    }

    def draw():
        figure, axes = plt.subplots(1, 4, figsize=(14, 3.9), sharex=True, sharey=True)
        others = np.concatenate([arrays[k] for k in (0, 2, 4)])
        for ax, (title, values) in zip(axes, panels.items(), strict=True):
            ax.scatter(*others.T, s=18, color=INK["soft"], alpha=0.5, label="negative bags")
            ax.scatter(
                *arrays[1].T, s=90, c=values, cmap=PROBABILITY, vmin=0, vmax=1,
                edgecolor=INK["ink"], label="one positive bag",
            )  # fmt: skip
            ax.set(title=title, xticks=[], yticks=[], xlim=(-3.2, 5.6))
            ax.title.set_fontsize(11)
            for n in (0, 1, 5):
                ax.annotate(f"{values[n]:.2f}", arrays[1][n], (7, 7), textcoords="offset points")
        axes[0].legend(loc="lower left", fontsize=9)
        colours = plt.cm.ScalarMappable(cmap=PROBABILITY)
        figure.colorbar(colours, ax=axes, label="probability of the instance", pad=0.01)
        return figure

    save(draw, "identifiability")


def attention():
    """Attention weights and probabilities on the same positive and negative bag."""
    from bagwise.deep import AttentionMIL

    data = load_digit_bags()
    bags, y = data.bags, data.y
    network = AttentionMIL(image_shape=(8, 8), random_state=0).fit(bags[:105], y[:105])
    model = AutoVGPMIL(random_state=0).fit(bags[:105], y[:105])
    values = {
        "attention weight": network.attention_weights(bags),
        "probability": model.predict_proba_instances(bags)[:, 1],
    }
    chosen = [111, 109]  # one with a nine, one without

    def draw():
        figure, axes = plt.subplots(2, 2, figsize=(10, 5), layout="constrained")
        for column, i in enumerate(chosen):
            rows = slice(*bags.offsets[i : i + 2])
            for ax, (name, all_values) in zip(axes[:, column], values.items(), strict=True):
                shown = all_values[rows]
                ax.bar(range(len(shown)), shown, color=PROBABILITY(shown), edgecolor=INK["ink"])
                ax.set(ylim=(0, 1.5), xticks=[], yticks=[0, 0.5, 1])
                ax.set_title(f"{name}, {'a bag with a nine' if y[i] else 'a bag without'}")
                for k, image in enumerate(data.images[rows]):
                    inset = ax.inset_axes((k - 0.35, 1.16, 0.7, 0.3), transform=ax.transData)
                    inset.imshow(image, cmap="gray_r")
                    inset.set(xticks=[], yticks=[])
                for k, value in enumerate(shown):
                    ax.text(k, value + 0.02, f"{value:.2f}", ha="center", fontsize=9)
        return figure

    save(draw, "attention")


def choosing():
    """The flow chart of the page "Choose a model"."""
    steps = [
        ("Do bags arrive one at a time?", "MIO, VGPMIL.partial_fit"),
        ("Does the label need the whole bag,\nor something that is missing?",
         "SetKernelSVM, MILES, BagStatistics"),
        ("Are instances raw images?", "AttentionFeatures, then go on"),
        ("Boxes, videos or CT scans?", "WeakDetector, MIOTracker, bagwise ct"),
        ("Do you want to see kinds of instances?", "DPMIL"),
        ("Do you know the likelihood and kernel?", "VGPMIL(likelihood=..., kernel=...)"),
        ("Otherwise, and if in doubt", "AutoVGPMIL"),
    ]  # fmt: skip

    def draw():
        figure, axes = plt.subplots(figsize=(9.5, 6.8))
        box = {"boxstyle": "round,pad=0.45", "facecolor": INK["paper"], "linewidth": 1.5}
        for k, (question, answer) in enumerate(steps):
            last = k == len(steps) - 1
            axes.text(0, -k, question, ha="center", va="center",
                      bbox=box | {"edgecolor": INK["neg"]})  # fmt: skip
            axes.text(2.35, -k, answer, ha="left", va="center", family="monospace", fontsize=10,
                      weight="bold" if last else "normal",
                      bbox=box | {"edgecolor": INK["pos"]})  # fmt: skip
            arrow = {"arrowstyle": "-|>", "color": INK["soft"], "linewidth": 1.4}
            axes.annotate("", (2.22, -k), (1.5, -k), arrowprops=arrow)
            if not last:
                axes.text(1.82, -k + 0.12, "yes", ha="center", color=INK["soft"])
                axes.annotate("", (0, -k - 0.68), (0, -k - 0.3), arrowprops=arrow)
                axes.text(0.1, -k - 0.52, "no", color=INK["soft"])
        axes.set(xlim=(-1.6, 5.2), ylim=(-len(steps) + 0.5, 0.5))
        axes.set_axis_off()
        return figure

    save(draw, "choosing")


def reliability():
    """Reliability of bags and instances before and after calibration, pooled over seeds."""
    pooled = {}
    for seed in range(4):
        data = load_digit_bags(random_state=seed)
        for calibrate in (False, True):
            model = VGPMIL(calibrate=calibrate, inference="paper", random_state=0)
            model.fit(data.bags[:100], data.y[:100])
            new = data.bags[100:]
            pairs = pooled.setdefault(calibrate, {"bags": [], "instances": []})
            pairs["bags"].append((data.y[100:], model.predict_proba(new)[:, 1]))
            truth = data.instance_labels[data.bags.offsets[100] :]
            pairs["instances"].append((truth, model.predict_proba_instances(new)[:, 1]))

    def draw():
        figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained", sharey=True)
        for ax, level in zip(axes, ("bags", "instances"), strict=True):
            ax.plot([0, 1], [0, 1], color=INK["soft"], linewidth=1, linestyle="--")
            for calibrate, colour in ((False, INK["neg"]), (True, INK["pos"])):
                y = np.concatenate([pair[0] for pair in pooled[calibrate][level]])
                p = np.concatenate([pair[1] for pair in pooled[calibrate][level]])
                x, share, low, high = bins(y, p)
                name = "calibrated on held-out bags" if calibrate else "not calibrated"
                shift = 0.006 if calibrate else -0.006
                ax.errorbar(x + shift, share, (share - low, high - share), color=colour, marker="o",
                            capsize=3, label=name)  # fmt: skip
            ax.set(title=f"held-out {level}", xlabel="predicted probability", ylim=(-0.03, 1.03))
        axes[0].set_ylabel("share of positives, 95 % interval")
        axes[1].legend(loc="lower right")
        return figure

    save(draw, "reliability")


def bins(y, p, n_bins=6):
    """Mean probability and share of positives in equal bins, with Wilson's intervals."""
    from bagwise.evaluate import proportion

    bin_of = np.minimum((p * n_bins).astype(int), n_bins - 1)
    used = [k for k in range(n_bins) if (bin_of == k).sum() >= 5]
    shares = [proportion(int(y[bin_of == k].sum()), int((bin_of == k).sum())) for k in used]
    centres = np.array([p[bin_of == k].mean() for k in used])
    columns = np.array([[share.value, share.low, share.high] for share in shares]).T
    return centres, *columns


def learning_curve():
    """AUC of held-out bags and of their instances by the number of training bags."""
    from sklearn.metrics import roc_auc_score

    sizes, scores = (20, 40, 70, 100), {"bags": [], "instances": []}
    for seed in range(4):
        data = load_digit_bags(random_state=seed)
        test, truth = data.bags[100:], data.instance_labels[data.bags.offsets[100] :]
        fitted = [VGPMIL(random_state=0).fit(data.bags[:n], data.y[:n]) for n in sizes]
        bag = [roc_auc_score(data.y[100:], m.predict_proba(test)[:, 1]) for m in fitted]
        instance = [roc_auc_score(truth, m.predict_proba_instances(test)[:, 1]) for m in fitted]
        scores["bags"].append(bag)
        scores["instances"].append(instance)

    def draw():
        figure, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
        for (name, values), colour in zip(scores.items(), (INK["pos"], INK["neg"]), strict=True):
            values = np.array(values)
            ax.plot(sizes, values.mean(0), color=colour, marker="o", label=f"held-out {name}")
            ax.fill_between(sizes, values.min(0), values.max(0), color=colour, alpha=0.2)
        ax.set(xlabel="labelled bags of digits", ylabel="AUC, mean and range of four seeds")
        ax.legend(loc="lower right")
        return figure

    save(draw, "learning-curve")


def slide_files(folder):
    """Slides of 24 x 16 patches, a round tumour in every second one, a model of 30, the rest."""
    import h5py

    from bagwise.cli import main

    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(24), np.arange(16)), axis=-1).reshape(-1, 2)
    rows = []
    for part in ("slides", "new"):
        (folder / part).mkdir()
    for i in range(40):
        patches = rng.normal(size=(len(grid), 16)).astype(np.float32)
        centre, radius = rng.uniform((5, 4), (19, 12)), rng.uniform(2, 4)
        is_tumour = (np.hypot(*(grid - centre).T) < radius) & (i % 2 == 1)
        patches[is_tumour, :4] += 1.8
        path = folder / ("slides" if i < 30 else "new") / f"slide_{i:02d}.h5"
        with h5py.File(path, "w") as file:
            file["features"] = patches
            file.create_dataset("coords", data=grid * 512).attrs["patch_size_level0"] = 512
        rows.append(f"slide_{i:02d},{'tumour' if i % 2 else 'normal'}")
    for name, part in (("labels.csv", rows[:30]), ("new.csv", rows[30:])):
        (folder / name).write_text("slide_id,label\n" + "\n".join(part), encoding="utf-8")
    for words in (
        f"fit --bags {folder}/slides --labels {folder}/labels.csv --model vgpmil --cv 3 "
        f"--set n_inducing=60 --out {folder}/model.bagwise",
        f"predict {folder}/model.bagwise --bags {folder}/new --labels {folder}/new.csv "
        f"--out {folder}/results",
    ):
        if main(words.split()):
            raise RuntimeError(words)


def report():
    """`report.html` of new slides in a browser, light and dark."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        slide_files(Path(name))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        for scheme, ending in (("light", ""), ("dark", "-dark")):
            page = browser.new_page(
                viewport={"width": 1180, "height": 1060}, color_scheme=scheme, device_scale_factor=1
            )
            page.goto((Path(name) / "results" / "report.html").as_uri())
            page.locator("#table tbody tr").first.click()
            page.screenshot(path=OUT / f"report{ending}.png")
        browser.close()


PICTURES = [mil, identifiability, attention, choosing, reliability, learning_curve, report]


def main(names):
    """Draw those that are named, or all."""
    for picture in PICTURES:
        if not names or picture.__name__ in names:
            picture()
            print(picture.__name__)


if __name__ == "__main__":
    main(sys.argv[1:])
