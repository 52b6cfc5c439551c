"""The order of the gallery: the beginner's example first, the others by name."""


class BeginnersFirst:
    """Sort key of sphinx-gallery."""

    def __init__(self, source_dir: str) -> None:
        self.source_dir = source_dir

    def __call__(self, name: str) -> tuple[bool, str]:
        return name != "plot_digit_bags.py", name

    def __repr__(self) -> str:  # compared between builds
        return type(self).__name__
