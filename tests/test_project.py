"""Files about the project agree with each other and name no machine."""

from __future__ import annotations

import ast
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


def layers_on_the_page(heading):
    """Names in the first column of the first table under a heading, row by row from the top."""
    section = read("docs/architecture.md").partition(f"## {heading}\n")[2].partition("\n##")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [set(re.findall(r"`(\w+)`", cell)) for cell in rows]


def layers_of_contract(container):
    """Layers of the import contract of a package, from the top."""
    for contract in PROJECT["tool"]["importlinter"]["contracts"]:
        if contract.get("containers", ["bagwise"]) == [container]:
            return [
                {name.strip().removeprefix("bagwise.") for name in layer.split("|")}
                for layer in contract["layers"]
            ]
    raise AssertionError(f"{container} has no import contract")


def members(package):
    """Modules and packages of a package."""
    names = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    return {name for name in names if not name.startswith("__")}


def imported(package, name):
    """Members of a package that one of its members imports, inside of functions, too."""
    dotted = ".".join(package.relative_to(ROOT / "src").parts)
    path = package / f"{name}.py"
    for source in [path] if path.exists() else (package / name).rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for target in targets:
                if target.startswith(f"{dotted}."):
                    yield target.removeprefix(f"{dotted}.").partition(".")[0]


PACKAGE = ROOT / "src" / "bagwise"


@pytest.mark.parametrize(
    ("heading", "package"),
    [
        ("Packages and layers", PACKAGE),
        ("Inside models", PACKAGE / "models"),
        ("Inside models/variational", PACKAGE / "models" / "variational"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_layers_of_the_architecture_page_are_those_of_the_imports(heading, package):
    layers = layers_on_the_page(heading)
    assert layers
    level = {name: k for k, layer in enumerate(layers) for name in layer}
    assert set(level) <= members(package)
    for name, k in level.items():
        above = [n for n in imported(package, name) if n != name and level.get(n, k + 1) <= k]
        assert not above, f"{name} imports {above} from above or beside it"


def test_layers_of_the_architecture_page_are_complete():
    of_page = layers_on_the_page("Inside models/variational")
    assert set().union(*of_page) == members(PACKAGE / "models" / "variational")
    aliases = {"comparators"}  # public names of bagwise.models.comparators
    assert set().union(*layers_on_the_page("Packages and layers")) == members(PACKAGE) - aliases


def test_layers_of_the_architecture_page_are_those_of_the_contract():
    for heading, container in [
        ("Packages and layers", "bagwise"),
        ("Inside models", "bagwise.models"),
        ("Inside models/variational", "bagwise.models.variational"),
    ]:
        assert layers_on_the_page(heading) == layers_of_contract(container)


def test_no_two_classes_share_a_name():
    where = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, set()).add(path.relative_to(PACKAGE).as_posix())
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


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
