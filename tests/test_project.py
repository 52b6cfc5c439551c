"""Files about the project agree with each other and name no machine."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import bagwise

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra dask")

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_everywhere():
    version = bagwise.__version__
    dated = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$"
    assert re.search(dated, read("CHANGELOG.md"), re.MULTILINE)
    assert f"version: {version}\n" in read("CITATION.cff")
    assert f'"{version}"' in read("conda/meta.yaml")


def test_every_release_is_dated():
    heads = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", head) for head in heads)


def test_ci_tests_what_the_classifiers_promise():
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    promised = [c.rpartition(" :: ")[2] for c in PROJECT["project"]["classifiers"]]
    assert matrix["python"] == PYTHONS == [p for p in promised if re.fullmatch(r"3\.\d+", p)]
    systems = {"ubuntu-latest": "Linux", "macos-latest": "MacOS", "windows-latest": "Windows"}
    assert set(matrix["os"]) == set(systems)
    assert set(systems.values()) <= set(promised)
    assert {"lint", "docs", "package", "coverage"} <= set(workflow["jobs"])


def test_coverage_has_a_floor():
    assert PROJECT["tool"]["coverage"]["report"]["fail_under"] >= 92


def test_conda_needs_what_the_package_needs():
    recipe = read("conda/meta.yaml").replace("matplotlib-base", "matplotlib")
    for requirement in PROJECT["project"]["dependencies"]:
        name, _, least = requirement.partition(">=")
        assert f"- {name} >={least}\n" in recipe, requirement


def test_core_dependencies_are_explained():
    page = read("docs/architecture.md")
    for requirement in PROJECT["project"]["dependencies"]:
        assert re.search(rf"^\| .*\b{requirement.partition('>=')[0]}\b", page, re.M), requirement


def test_lock_file_has_exact_versions_of_the_dependencies():
    lines = [line for line in read("constraints/test.txt").splitlines() if line[:1] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    locked = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(r for e in extras.values() for r in e)]
    names = {re.split(r"[\[>]", requirement)[0].lower() for requirement in wanted}
    assert names - {"bagwise"} <= locked


def test_the_sdist_holds_what_the_tests_look_at():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all((ROOT / name.lstrip("/")).exists() for name in included)
    needed = ("src", "tests", "docs", "examples", "experiments", "benchmarks", "conda", "Makefile")
    assert {f"/{name}" for name in needed} <= set(included)


def test_templates_parse():
    for path in [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]:
        assert yaml.safe_load(path.read_text(encoding="utf-8")), path


def tracked_texts():
    """Every text file of the project, by git where there is a checkout."""
    done = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = done.stdout.split("\n") if done.returncode == 0 else []
    kinds = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".rst", ".cff", ".js", ".css"}
    paths = [ROOT / name for name in names if Path(name).suffix in kinds]
    return paths or [p for p in ROOT.rglob("*.md") if ".venv" not in p.parts]


def test_no_machine_is_named():
    homes = "|".join(("work", "root", r"home/\w+"))
    words = "|".join(("index" + "-url", "pypi" + "-mirror"))
    pattern = re.compile(rf"(?<![\w.])/(?:{homes})/|{words}")
    named = [
        path
        for path in tracked_texts()
        if path.exists() and pattern.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert not named
