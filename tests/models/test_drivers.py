"""One result, however the work is run: serial, threads, Dask, memory, disk, files, checkpoints."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from bagwise import GVGPMIL, LMVGPMIL, VGPMIL, Bags, Execution
from bagwise.datasets import load_musk1
from bagwise.models.drivers import Serial, Threads, cut, make_driver
from bagwise.models.execution import parse_bytes
from bagwise.models.variational import NoisyMax, Or, SoftMax, engine, projection
from bagwise.models.variational.blocks import BagLabels
from bagwise.models.variational.projection import Projected, make_parts, share_out
from tests.checks.options import gathered

OPTIONS = {"n_inducing": 20, "random_state": 0, "max_iter": 12, "tol": 0.0, "chunk_size": 64}


@pytest.fixture(scope="module")
def musk():
    return load_musk1(return_X_y=True)


def model_of(model=VGPMIL, **options):
    return model(**gathered(**{**OPTIONS, **options}))


def fit(musk, model=VGPMIL, **options):
    return model_of(model, **options).fit(*musk)


@pytest.fixture(scope="module", params=["marginal", "paper"])
def inference(request):
    return request.param


@pytest.fixture(scope="module")
def serial(musk, inference):
    return fit(musk, inference=inference, driver="serial")


def assert_same_fit(a, b, bags, tol=1e-8):
    np.testing.assert_allclose(a.kernel_.theta, b.kernel_.theta, atol=tol)
    np.testing.assert_allclose(a.posterior_mean_, b.posterior_mean_, atol=tol)
    np.testing.assert_allclose(a.bound_history_, b.bound_history_, rtol=1e-9)
    np.testing.assert_allclose(a.held_out_decision_, b.held_out_decision_, atol=1e-6)
    for method in ("predict_proba", "predict_proba_instances", "predict_positive_fraction"):
        ours, theirs = (getattr(model, method)(bags, return_std=True) for model in (a, b))
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x, y, atol=tol, err_msg=method)
    if hasattr(b, "instance_proba_"):
        np.testing.assert_allclose(a.instance_proba_, b.instance_proba_, atol=tol)


@pytest.mark.parametrize(
    "options",
    [
        {"driver": "threads", "n_jobs": 3},
        {"n_jobs": 2},
        {"driver": "serial", "cache": "disk"},
        {"driver": "serial", "cache": "none"},
        {"driver": "threads", "cache": "disk", "n_jobs": 2},
        {"driver": "serial", "cache": "auto", "memory_limit": 1000},
        {"driver": "serial", "chunk_size": 7},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_same_result(musk, serial, inference, options):
    assert_same_fit(fit(musk, inference=inference, **options), serial, musk[0])


def test_auto_cache_says_what_it_did(musk, serial, inference):
    assert serial.cache_ == "memory"
    assert fit(musk, inference=inference, memory_limit="1KB").cache_ == "disk"


@pytest.mark.parametrize(
    "options",
    [
        {"likelihood": Or()},
        {"likelihood": Or(0.5, error=0.1)},
        {"likelihood": SoftMax(0.0)},
        {"inference": "paper", "likelihood": NoisyMax(1e6, "exact", "sequential")},
        {"inference": "paper", "likelihood": NoisyMax(schedule="paper"), "learn_kernel": True},
    ],
    ids=str,
)
def test_every_likelihood(musk, options):
    a, b = (fit(musk, **options, n_jobs=n) for n in (None, 2))
    assert_same_fit(a, b, musk[0])


@pytest.mark.parametrize("model", [GVGPMIL, LMVGPMIL])
def test_every_relative(musk, model):
    a, b = (fit(musk, model, cache=c) for c in ("memory", "disk"))
    assert_same_fit(a, b, musk[0])


def test_memory_map_is_read_from_its_file(musk, serial, inference, tmp_path):
    bags, y = musk
    padded = np.concatenate([np.zeros((5, bags.n_features)), bags.instances])
    padded.tofile(tmp_path / "rows.bin")
    mapped = np.memmap(tmp_path / "rows.bin", dtype=np.float64, mode="r", shape=padded.shape)
    sliced = Bags(mapped[5:], bags.offsets)
    made = make_parts(
        sliced.instances,
        BagLabels(bags.offsets, y),
        None,
        64,
        3,
    )
    rows = np.concatenate([part.blocks.X[:] for part in made])
    np.testing.assert_array_equal(rows, bags.instances)
    np.testing.assert_array_equal(made[1].blocks.X[[2, 0]], made[1].blocks.X[:][[2, 0]])
    assert_same_fit(fit((sliced, y), inference=inference, cache="disk"), serial, bags)


@pytest.mark.parametrize("driver", [None, Serial(), Threads(2)])
@pytest.mark.parametrize("scale", ["feature", "global", None])
def test_scaling_of_rows_on_disk(tmp_path, monkeypatch, driver, scale):
    from bagwise.files import map_rows_of
    from bagwise.models import scaling

    monkeypatch.setattr(scaling, "_NUMBERS", 40)  # several chunks in each run, several runs
    monkeypatch.setattr(scaling, "_CHUNKS", 3)
    X = np.random.default_rng(0).normal(size=(101, 4)) * [1, 10, 1e-3, 0] + [0, 1e6, 0, 3]
    X.tofile(tmp_path / "rows.bin")
    rows = map_rows_of(np.memmap(tmp_path / "rows.bin", np.float64, "r", shape=X.shape))
    found = scaling.learn_scaling(rows, scale, driver)
    here = scaling.learn_scaling(X, scale)
    assert all((a == b).all() for a, b in zip(found, here, strict=True))  # to the last bit
    width = X.std(axis=0)
    if scale == "global":
        width = np.full(4, np.sqrt(np.mean(width**2)))
    center, width = (np.zeros(4), 1) if scale is None else (X.mean(axis=0), width)
    np.testing.assert_allclose(found.center, center, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found.width, np.where(np.equal(width, 0), 1, width), rtol=1e-9)


@pytest.mark.parametrize("kind", ["<f4", ">f4", ">f8", "f2", "i4", "u1", "F", "rows", "unaligned"])
def test_rows_of_every_kind_are_measured_and_scaled(kind):
    from bagwise.models import scaling

    X = np.random.default_rng(0).integers(0, 99, size=(60, 4)).astype(np.float64)
    rows = X.astype(kind) if kind[-1].isdigit() else X.copy()
    if kind == "F":
        rows = np.asfortranarray(rows)
    elif kind == "rows":
        rows = np.repeat(X, 2, axis=0)[::2]
    elif kind == "unaligned":
        rows = np.frombuffer(b"." + X.tobytes(), dtype=np.float64, offset=1).reshape(X.shape)
    found = scaling.learn_scaling(rows, "feature")
    np.testing.assert_allclose(found.center, X.mean(axis=0))
    np.testing.assert_allclose(found.width, X.std(axis=0))
    np.testing.assert_array_equal(found(rows), (X - found.center) / found.width)


@pytest.mark.parametrize("options", [{"driver": "serial"}, {"n_jobs": 2}])
@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (-np.inf, "infinity")])
def test_rows_on_disk_must_be_finite(musk, tmp_path, options, bad, word):
    bags, y = musk
    X = np.array(bags.instances, dtype=np.float64)
    X[bags.offsets[7] + 1, 3] = bad
    X.tofile(tmp_path / "rows.bin")
    on_disk = Bags(np.memmap(tmp_path / "rows.bin", np.float64, "r", shape=X.shape), bags.offsets)
    message = rf"bag 7.* contains {word} in instance 1, feature 3"
    with pytest.raises(ValueError, match=message):
        fit((on_disk, y), **options)
    model = fit(musk, **options)
    with pytest.raises(ValueError, match=message):
        model.predict(on_disk)


def test_truncated_memory_map_is_named(tmp_path):
    from bagwise.files import map_rows_of

    np.zeros((4, 2)).tofile(tmp_path / "rows.bin")
    mapped = np.memmap(tmp_path / "rows.bin", dtype=np.float64, mode="r", shape=(4, 2))
    rows = map_rows_of(mapped)
    os.truncate(tmp_path / "rows.bin", 40)
    with pytest.raises(ValueError, match=r"rows\.bin ends before row 4"):
        rows[0:4]


def test_folder_of_files(musk, serial, inference, tmp_path):
    from bagwise.files import read_bags

    bags, y = musk
    for i, x in enumerate(bags):
        np.save(tmp_path / f"{i:03d}.npy", x)
    lazy = read_bags(tmp_path, lazy=True)
    assert_same_fit(fit((lazy, y), inference=inference, cache="none"), serial, bags)


def test_parts_hold_every_bag_once():
    offsets = np.array([0, 3, 4, 10, 30, 31, 33])
    labels = BagLabels(offsets, np.arange(6) % 2)
    X = np.arange(66.0).reshape(33, 2)

    class Project:
        def __call__(self, x):
            return x.T, x[:, 0]

        def place(self, labels):
            return labels

    for n_parts in (1, 2, 3, 50):
        made = make_parts(X, labels, Project(), 4, n_parts)
        assert 1 <= len(made) <= n_parts
        blocks = [block for part in made for block in part.blocks]
        assert all(isinstance(part.blocks, Projected) for part in made)
        np.testing.assert_array_equal(np.concatenate([b.r for b in blocks]), X[:, 0])
        np.testing.assert_array_equal(np.concatenate([b.labels.y for b in blocks]), labels.y)


@pytest.mark.parametrize(("n_rows", "n_spans"), [(4, 1), (9, 4), (80, 32), (1000, 256)])
def test_spans_are_of_equal_length_and_can_be_shared_evenly(n_rows, n_spans):
    """With chunks of one row a span has about four: as many as 2, 4, 8 and 16 divide."""
    spans = cut(np.arange(n_rows + 1), 1)
    assert len(spans) == n_spans
    lengths = [span.stop - span.start for span in spans]
    assert max(lengths) - min(lengths) <= 1
    for n_parts in (2, 4, 8, 16):
        rows = [group[-1].stop - group[0].start for group in share_out(spans, n_parts)]
        assert max(rows) <= np.ceil(n_rows / min(n_parts, n_spans)) + 1


def test_spans_hold_whole_bags_in_chunks_of_equal_length():
    sizes = np.random.default_rng(0).integers(1, 60, size=200)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    spans = cut(offsets, 10)
    assert [span.first_bag for span in spans] == [0, *(span.last_bag for span in spans[:-1])]
    assert spans[-1].last_bag == len(sizes)
    for span in spans:
        assert (span.start, span.stop) == (offsets[span.first_bag], offsets[span.last_bag])
        lengths = np.diff([*(start for start, _ in span.rows), span.stop])
        assert lengths.max() <= 10 and np.ptp(lengths) <= 1
        assert span.stop - span.start <= 40 or span.last_bag == span.first_bag + 1


@pytest.mark.parametrize(
    ("n_rows", "n_jobs", "chunk"),
    [
        (500, 1, 1024),
        (8_000, 1, 2000),
        (20_000, 1, 8192),
        (20_000, 2, 4096),
        (10**6, 1, 8192),
        (250_000, 16, 4882),
        (2 * 10**6, 16, 8192),
    ],
)
def test_chunks_grow_as_far_as_every_thread_has_its_share(n_rows, n_jobs, chunk):
    driver = Threads(n_jobs) if n_jobs > 1 else Serial()
    assert Execution().chunk(False, driver, n_rows) == chunk
    spans = cut(np.arange(0, n_rows + 1, 10), chunk)
    # Long spans are one chunk, which compiled passes take; all threads have as many of them.
    assert all(
        len(span.rows) == 1 and span.stop - span.start > 2048 for span in spans[: n_rows // 8192]
    )
    assert len(spans) % n_jobs == 0
    # Bags of ten do not end where a 64th of 250,000 rows does: still one span for each part.
    if n_rows >= n_jobs * 15_000:
        assert len(share_out(spans, driver.n_parts)) == driver.n_parts
    assert Execution(chunk_size=7).chunk(False, driver, n_rows) == 7


def test_make_driver():
    assert isinstance(make_driver(), Serial)
    assert isinstance(make_driver(1, "serial"), Serial)
    assert isinstance(make_driver(None, "threads"), Threads)
    assert make_driver(2).n_jobs == 2
    own = Threads(3)
    assert make_driver(driver=own) is own
    assert [row for s in cut(np.array([0, 1, 2]), 1) for row in s.rows] == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("text", "size"), [("10", 10), ("2KB", 2000), ("1.5 gb", 1_500_000_000), (7.9, 7), (None, None)]
)
def test_parse_bytes(text, size):
    assert parse_bytes(text) == size


def test_bad_limits(musk):
    with pytest.raises(ValueError, match="memory_limit must be bytes"):
        VGPMIL(execution=Execution(memory_limit="lots")).fit(*musk)
    with pytest.raises(ValueError, match="would hold"):
        VGPMIL(execution=Execution(cache="memory", memory_limit=10)).fit(*musk)
    with pytest.raises(ValueError, match="cache must be one of"):
        Execution(cache="tape")
    assert Execution().plan_cache(800) == "memory"


def test_full_disk_is_said_and_nothing_stays(musk, monkeypatch, tmp_path):
    monkeypatch.setattr(projection.tempfile, "tempdir", str(tmp_path))

    class Full:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            self.stream.close()

        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    opened = os.fdopen
    monkeypatch.setattr(projection.os, "fdopen", lambda *a: Full(opened(*a)))
    with pytest.raises(OSError, match="could not be cached on disk"):
        fit(musk, cache="disk")
    assert list(tmp_path.iterdir()) == []


def test_cache_files_are_removed(musk, monkeypatch, tmp_path):
    monkeypatch.setattr(projection.tempfile, "tempdir", str(tmp_path))
    fit(musk, cache="disk")
    assert list(tmp_path.iterdir()) == []


class KilledError(Exception):
    pass


def one_array(content):
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


def one_wrong_byte(content):
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]


DAMAGES = {
    "cut off": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "other content": lambda content: b"junk",
    "an array": one_array,
    "a pickle": lambda content: b"\x80\x04}.",
    "one wrong byte": one_wrong_byte,
}


class TestCheckpoint:
    @pytest.mark.parametrize("options", [{}, {"n_jobs": 2}, {"cache": "disk"}], ids=str)
    def test_resumes_to_the_same_result(self, musk, inference, tmp_path, options):
        path = tmp_path / "fit.npz"
        options = {"inference": inference, **options}

        def kill(told):
            if told.n_iter == 8:
                raise KilledError

        with pytest.raises(KilledError):
            fit(musk, checkpoint=path, checkpoint_every=3, callback=kill, **options)
        assert path.exists()
        later = []
        again = fit(
            musk,
            checkpoint=path,
            checkpoint_every=3,
            callback=lambda t: later.append(t.n_iter),
            **options,
        )
        # The updates of the papers are stored before an iteration, the marginal fit after one.
        assert later[0] == (7 if inference == "marginal" else 6)
        assert_same_fit(again, fit(musk, **options), musk[0], tol=1e-12)
        assert not path.exists()

    def test_resumes_where_the_work_is_cut_otherwise(self, musk, serial, inference, tmp_path):
        """Threads and Dask cut the bags into other blocks than one process does."""
        path = tmp_path / "fit.npz"
        options = {"inference": inference, "checkpoint": path, "checkpoint_every": 3}

        def kill(told):
            if told.n_iter == 8:
                raise KilledError

        with pytest.raises(KilledError):
            fit(musk, **options, chunk_size=7, n_jobs=2, callback=kill)
        assert_same_fit(fit(musk, **options), serial, musk[0])

    def test_the_search_for_a_kernel_is_stored(self, musk, tmp_path, monkeypatch):
        path = tmp_path / "fit.npz"

        def killed(*arguments):
            raise KilledError

        with monkeypatch.context() as patched:
            patched.setattr(engine, "fit_marginal", killed)
            with pytest.raises(KilledError):
                fit(musk, checkpoint=path)
        assert path.exists()
        whole = fit(musk)
        monkeypatch.setattr(engine, "choose", killed)
        assert_same_fit(fit(musk, checkpoint=path), whole, musk[0], tol=1e-12)
        assert not path.exists()

    def test_several_classes_resume(self, musk, inference, tmp_path):
        bags, y = musk
        y = np.where(np.arange(len(y)) % 3 == 0, 2, y)
        path, seen = tmp_path / "fit.npz", []
        options = {"inference": inference, "checkpoint_every": 1}

        def kill(told):
            seen.append(told.n_iter)
            if len(seen) == 15:  # with the updates of the papers that is in the second class
                raise KilledError

        options["max_iter"] = 12 if inference == "paper" else 20
        with pytest.raises(KilledError):
            fit((bags, y), checkpoint=path, callback=kill, **options)
        again = fit((bags, y), checkpoint=path, **options)
        del options["checkpoint_every"]
        assert_same_fit(again, fit((bags, y), **options), bags, tol=1e-12)
        assert list(tmp_path.iterdir()) == []

    def test_another_problem_is_refused(self, musk, inference, tmp_path):
        path = tmp_path / "fit.npz"

        def kill(told):
            if told.n_iter == 3:
                raise KilledError

        options = {"inference": inference, "checkpoint": path}
        with pytest.raises(KilledError):
            fit(musk, **options, checkpoint_every=1, callback=kill)
        before = path.read_bytes()
        bags, y = musk
        weights = np.where(np.arange(len(y)) < 3, 2.0, 1.0)
        for other in (
            lambda: fit(musk, **options, random_state=1),
            lambda: fit(musk, **options, tol=1e-5),
            lambda: fit((bags, y[::-1]), **options),
            lambda: model_of(**options).fit(bags, y, sample_weight=weights),
        ):
            with pytest.raises(ValueError, match="checkpoint of another fit"):
                other()
        assert path.read_bytes() == before

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_damaged_file_is_named(self, musk, inference, tmp_path, damage):
        path = tmp_path / "fit.npz"
        options = {"inference": inference, "checkpoint": path, "checkpoint_every": 1}

        def kill(told):
            raise KilledError

        with pytest.raises(KilledError):
            fit(musk, **options, callback=kill)
        before = DAMAGES[damage](path.read_bytes())
        path.write_bytes(before)
        with pytest.raises(ValueError, match=r"fit\.npz is not a checkpoint: .*Remove it") as error:
            fit(musk, **options)
        assert "\n" not in str(error.value)
        assert path.read_bytes() == before  # of the user's files, none is overwritten

    def test_killed_process(self, musk, inference, tmp_path):
        """A fit killed by SIGKILL goes on from its checkpoint in a new process."""
        path = tmp_path / "fit.npz"
        script = textwrap.dedent(f"""
            import time, warnings
            warnings.simplefilter("ignore")
            from bagwise import VGPMIL
            from tests.checks.options import gathered
            from bagwise.datasets import load_musk1
            def slow(told):
                if told.n_iter > 4:
                    print("on its way", flush=True)
                time.sleep(0.2)
            where = dict(checkpoint={str(path)!r}, checkpoint_every=2, inference={inference!r})
            VGPMIL(**gathered(**{OPTIONS!r}, **where), callback=slow).fit(
                *load_musk1(return_X_y=True))
        """)
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert path.exists(), "the fit ended before it could be killed"
        first, options = [], {"inference": inference}
        again = fit(musk, checkpoint=path, callback=lambda t: first.append(t.n_iter), **options)
        assert first[0] >= 4
        assert_same_fit(again, fit(musk, **options), musk[0], tol=1e-12)


def test_threads_by_themselves_where_the_work_is_worth_them(monkeypatch):
    from bagwise.models import drivers

    monkeypatch.setattr(drivers, "usable_threads", lambda: 3)
    enough = drivers._WORTH_THREADS
    assert isinstance(make_driver(size=enough - 1), Serial)
    assert make_driver(size=enough).n_jobs == 3
    assert isinstance(make_driver(1, size=enough), Serial)
    assert isinstance(make_driver(driver="serial", size=enough), Serial)
    # A device does the work itself.
    assert isinstance(Execution().make_driver(enough, device="cuda"), Serial)
    monkeypatch.setattr(drivers, "usable_threads", lambda: 1)
    assert isinstance(make_driver(size=enough), Serial)


def test_usable_threads_heeds_the_limit_of_blas():
    from threadpoolctl import threadpool_limits

    from bagwise.models.drivers import one_blas_thread, usable_threads

    with threadpool_limits(2, user_api="blas"):
        assert usable_threads() == 2
        with one_blas_thread():
            assert usable_threads() == 1
        assert usable_threads() == 2


def _process_pool(_):
    from bagwise.models.drivers import Threads

    return list(Threads(2).map(lambda x: x + 1, [1, 2, 3]))


def test_threads_stay_between_calls_and_forked_processes_have_their_own():
    """A fork copies the pool but not its threads: waiting for those would never end."""
    names = set()
    for _ in range(3):
        list(Threads(2).map(lambda _: names.add(threading.current_thread().name), range(4)))
    assert len(names) <= 2
    if "fork" in multiprocessing.get_all_start_methods():
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.map_async(_process_pool, [0]).get(30) == [[2, 3, 4]]
