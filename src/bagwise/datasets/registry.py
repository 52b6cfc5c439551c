"""What a data home may hold: checksums (sha256) of its files, and where the sets are public."""

from importlib import resources

# The set, where it is public, and what to do with it.
ADDRESSES = {
    "newsgroups": "https://github.com/InkiInki/data (multi-instance/text-categorization); without "
    "it equivalent sets are rebuilt from scikit-learn's fetch_20newsgroups",
    "mnist": "https://www.openml.org/d/554; scikit-learn downloads it",
    "tracking/david": "https://github.com/whluo/MILTracker_Matlab_Version (its folder david)",
    "tracking/girl": "https://github.com/masa-nudt/KCFDP (its folder Girl)",
    "detection/animals": "https://github.com/datitran/raccoon_dataset and "
    "https://github.com/experiencor/kangaroo",
    "detection/scenes": "https://github.com/lightly-ai/coco128_yolo",
    "detection/bccd": "https://github.com/Shenggan/BCCD_Dataset (its folder BCCD)",
}

# In the format of sha256sum, the sets of a kind in their published order.
_LISTED = resources.files("bagwise.datasets") / "data" / "checksums.txt"
CHECKSUMS = dict(
    line.split("  ")[::-1] for line in _LISTED.read_text(encoding="utf-8").splitlines()
)
