"""Labels as Excel and people write them, and which class is the positive one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bagwise.files import BadFilesError, positive_class, read_bags, read_labels, read_training
from bagwise.files.tables import Names, read_frame
from tests.filing import make_folder

EXPECTED = ["007", "None", "nan", "müller"], ["tumor", "normal", "tumor", "normal"]
ROWS = list(zip(*EXPECTED, strict=True))


def text(delimiter, header=("slide_id", "label"), end="\n", extra=""):
    lines = [delimiter.join(header), *(delimiter.join(row) for row in ROWS)]
    return end.join(line + extra for line in lines) + end


WAYS = {
    "comma": text(",").encode(),
    "semicolon": text(";").encode(),
    "tab": text("\t").encode(),
    "bar": text("|").encode(),
    "byte order mark and Windows line ends": text(";", end="\r\n").encode("utf-8-sig"),
    "unicode text of Excel": text("\t", end="\r\n").encode("utf-16"),
    "case and blanks in the header": text(",", (" Slide ID ", "LABEL")).encode(),
    "empty columns and lines at the end": (text(";", extra=";;") + ";;;\n;;;\n").encode(),
    "sep line": ("sep=;\n" + text(";")).encode(),
    "blank lines before the header": ("\n;\n" + text(";")).encode(),
    "quoted": text(",").replace("tumor", '"tumor"').encode(),
    "blanks around fields": text(" , ").encode(),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_labels(tmp_path, way):
    path = tmp_path / "labels.csv"
    path.write_bytes(WAYS[way])
    labels = read_labels(path)
    assert (labels.ids.tolist(), labels.y.tolist()) == EXPECTED


def test_a_workbook(tmp_path):
    pytest.importorskip("openpyxl", reason="reads .xlsx files")
    path = tmp_path / "labels.xlsx"
    frame = pd.DataFrame(ROWS, columns=["Slide ID", "Label"])
    frame.to_excel(path, index=False)
    labels = read_labels(path)
    assert (labels.ids.tolist(), labels.y.tolist()) == EXPECTED
    with pd.ExcelWriter(path) as book:
        pd.DataFrame({"slide_id": ["1", "2"], "label": [0, 1]}).to_excel(book, index=False)
        frame.to_excel(book, sheet_name="notes", index=False)
    with pytest.warns(UserWarning, match="the first sheet, 'Sheet1', is read; not 'notes'"):
        assert read_labels(path).y.tolist() == [0, 1]
    path.write_bytes(b"PK\x03\x04 no workbook")
    with pytest.raises(BadFilesError, match="cannot be read"):
        read_labels(path)


def test_parquet_keeps_none_apart_from_missing(tmp_path):
    path = tmp_path / "labels.parquet"
    pd.DataFrame({"slide_id": ["None", "nan"], "label": [0, 1]}).to_parquet(path)
    assert read_labels(path).ids.tolist() == ["None", "nan"]
    pd.DataFrame({"slide_id": ["a", None], "label": [0, 1]}).to_parquet(path)
    with pytest.raises(BadFilesError, match="line 2: column 'slide_id' is empty"):
        read_labels(path)


def test_decimal_commas(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("slide_id;label\na;1,0\nb;0,0\n")
    assert read_labels(path).y.tolist() == [1, 0]
    table = tmp_path / "rows.csv"
    table.write_text("Slide_ID;mass;charge\nNone;1,5;-2\nNone;2,5;3\nnan;-0,5;1\n")
    bags = read_bags(table)
    assert bags.ids.tolist() == ["None", "nan"]
    assert bags.instances.tolist() == [[1.5, -2.0], [2.5, 3.0], [-0.5, 1.0]]
    # Points stay points where both signs occur: then the comma is no decimal sign.
    table.write_text("slide_id;a;b\ns;1,5;2.5\n")
    with pytest.raises(BadFilesError, match="line 2 has '1,5'"):
        read_bags(table)


def test_headers_that_cannot_be_told_apart(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("Slide ID,slide-id,label\na,b,0\n")
    with pytest.raises(BadFilesError, match="several columns like 'slide_id': Slide ID, slide-id"):
        read_labels(path)
    path.write_text("Slide ID,slide_id,label\na,b,0\n")
    assert read_labels(path).ids.tolist() == ["b"]  # as written wins


def test_lines_are_those_of_the_file(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("slide_id,label\na,0\n\n,\nb,\n")
    with pytest.raises(BadFilesError, match=r"line 5: column 'label' is empty \(bag 'b'\)"):
        read_labels(path)
    assert read_frame(path).index.tolist() == [2, 5]


def test_blank_and_contradicting_rows_can_be_skipped_with_a_list(tmp_path):
    folder, path = make_folder(tmp_path)
    rows = path.read_text().splitlines()
    rows[2] = "001,"  # blank
    rows += ["002,0", "003,0"]  # the same again, and one that disagrees
    path.write_text("\n".join(rows))
    with pytest.raises(BadFilesError) as caught:
        read_training(folder, path)
    assert len(caught.value.problems) == 2
    for said in (
        "line 3: column 'label' is empty (bag '001')",
        "bag '003' has 2 rows (lines 5, 27), which disagree",
    ):
        assert said in str(caught.value)
    data = read_training(folder, path, skip_bad=True)
    assert "002" in data.bags
    assert "001" not in data.bags
    assert "003" not in data.bags
    assert len(data.bags) == len(data.y) == 22
    assert len(data.skipped) == 2


def test_a_table_of_instances_may_have_the_labels(tmp_path):
    """One file, a row per instance: the label of every row, which is no feature."""
    path = tmp_path / "molecules.csv"
    path.write_text("molecule,label,d\nb,1,0.5\na,0,0.1\na,0,0.2\nb,1,0.7\nb,1,0.6\n")
    assert read_labels(path, "molecule").ids.tolist() == ["b", "a"]
    data = read_training(path, path, Names(bag="molecule"))
    assert dict(zip(data.bags.ids, data.y.tolist(), strict=True)) == {"a": 0, "b": 1}
    assert data.bags.sizes.sum() == 5 and data.bags.n_features == 1
    path.write_text(path.read_text() + "a,1,0.3\n")
    with pytest.raises(BadFilesError, match=r"bag 'a' has 3 rows .* which disagree"):
        read_training(path, path, Names(bag="molecule"))


def test_spelling_slips_are_named(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("slide_id,label\na,Tumor\nb,tumor\nc,tumor\nd,normal\n")
    with pytest.raises(
        BadFilesError, match=r"'Tumor' \(1 bags\) and 'tumor' \(2 bags\) differ only in case"
    ):
        read_labels(path)


def test_zeros_that_excel_took_are_hinted_at(tmp_path):
    folder, path = make_folder(tmp_path)
    rows = [line.lstrip("0") if line[0] == "0" else line for line in path.read_text().splitlines()]
    path.write_text("\n".join([rows[0], "0,0", *rows[2:]]))
    with pytest.raises(BadFilesError, match="there is '000': store ids as text to keep zeros"):
        read_training(folder, path)


@pytest.mark.parametrize(
    ("classes", "positive"),
    [
        ([0, 1], 1),
        ([-1, 1], 1),
        ([1, 2], 2),
        (["Tumor", "normal"], "Tumor"),
        (["BENIGN", "malignant"], "malignant"),
        (["case", "Control"], "case"),
        (["mutant", "wild-type"], "mutant"),
        (["nine", "none"], "nine"),
        (["no", "yes"], "yes"),
        (["Metastasis", "Non-Metastasis"], "Metastasis"),
        (["healthy", "sick"], "sick"),
        (["Negative", "positive"], "positive"),
        (["MSI-H", "MSS"], "MSI-H"),
        (["A", "B"], None),
        (["luad", "lusc"], None),
        (["benign", "normal"], None),
        (["wild", "mutant"], None),
    ],
)
def test_the_positive_class(classes, positive):
    assert positive_class(classes) == positive
    assert positive_class(classes[::-1]) == positive


def test_labels_of_numbers_and_text_mixed_are_text(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("slide_id,label\na,1\nb,none\n")
    assert np.unique(read_labels(path).y).tolist() == ["1", "none"]
