"""The house: the package imports no file of the root, and inside it imports go one way only."""

import ast

from tests.conftest import ROOT

# Each may import those before it, and itself.
LAYERS = "escapes redact errors log command sums files addresses progress hub".split()
LAYERS += "processes determined_internals pages settings records squad".split()
LAYERS += "corpus engine run_page training inference torchrun".split()
BESIDE = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"detalbert"}
OUTSIDE = {path.stem for path in ROOT.glob("*.py")} | BESIDE


def imported(source: str) -> list[str]:
    """Every module, and every name out of one, that `source` imports anywhere."""
    modules = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import, which this test does not follow"
            modules += [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
    return modules


def wrong_imports(place: str, source: str) -> list[str]:
    """The modules that `source`, at `place` below detalbert/, must not import."""
    layer = LAYERS.index(place.split("/")[0].removesuffix(".py"))
    modules = imported(source)
    allowed = {"__version__"}
    for name in modules:
        package, _, path = name.partition(".")
        if package == "detalbert" and path.split(".")[0] in LAYERS[: layer + 1]:
            allowed.add(path)
    wrong = []
    for module in modules:
        package, _, path = module.partition(".")
        if package in OUTSIDE or package == "detalbert" and path not in allowed:
            wrong.append(module)
    return wrong


def test_imports_go_one_way():
    package = ROOT / "detalbert"
    # Commands stand above all layers.
    files = {path.relative_to(package).as_posix(): path for path in package.glob("**/*.py")}
    del files["corpus/__main__.py"], files["settings/__main__.py"], files["__init__.py"]
    sources = {place: path.read_text() for place, path in files.items() if path.stat().st_size}
    wrong = {place: wrong_imports(place, source) for place, source in sources.items()}
    assert len(wrong) > 50 and {place: names for place, names in wrong.items() if names} == {}


# Of cluster/: each may import those before it, and itself.
WINGS = "DATA flags master prices machines pools experiment published sizes job options".split()
WINGS += "plan_page ask uploads rules".split()
COMMANDS = ["check", "plan"]


def test_the_root_holds_what_a_user_runs():
    assert len(list(ROOT.glob("*.py"))) <= 6
    assert all(not path.read_text() for path in ROOT.glob("detalbert/*/**/__init__.py"))
    assert not imported((ROOT / "detalbert" / "__init__.py").read_text())
