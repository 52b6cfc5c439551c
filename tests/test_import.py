from __future__ import annotations

import subprocess
import sys

LAZY = ("torch", "dask", "cv2", "matplotlib", "numba", "h5py", "jinja2")


def test_heavy_libraries_are_imported_lazily():
    code = (
        "import sys, bagwise; bagwise.Bags; bagwise.SingleInstance; "
        f"print([m for m in {LAZY!r} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_model_is_imported_with_little_more_than_scikit_learn_needs():
    slow = ("sklearn.cluster", "sklearn.metrics", "sklearn.model_selection", "sklearn.isotonic")
    slow = (*LAZY, *slow, "rich")
    code = (
        f"import sys; from bagwise import VGPMIL; print([m for m in {slow!r} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_unknown_name_is_an_attribute_error():
    import bagwise

    assert not hasattr(bagwise, "NoSuchModel")


def test_every_public_name_exists():
    import bagwise

    for name in bagwise.__all__:
        assert getattr(bagwise, name) is not None
        assert name in dir(bagwise)
