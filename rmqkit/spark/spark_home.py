"""Makes a Spark home without the jars that cost a session time and that a pipeline never uses.

Spark's class path is the folder `jars` of its home. A session asks all jars for extensions, and the
one of `spark-mllib` answers: its functions for SQL make Spark load Scala's reflection, a thousand
classes. No setting prevents that. So the home is a folder of links to the real one, except for
these jars. It is made once, in the user's cache folder. Its name depends on what it links to.
"""

import hashlib
import os
import tempfile
from pathlib import Path

from rmqkit.spark.java import cache_folder

#: Beginnings of the jars that are left out.
LEFT_OUT = ("spark-mllib_",)
JARS = "jars"


def lean_home(home: Path) -> Path | None:
    """Return a home like `home` with fewer jars; None if it cannot be made."""
    try:
        links = {name: home / name for name in sorted(os.listdir(home)) if name != JARS}
        jars = [name for name in sorted(os.listdir(home / JARS)) if not name.startswith(LEFT_OUT)]
        links |= {f"{JARS}/{name}": home / JARS / name for name in jars}
        key = hashlib.sha256("\n".join(map(str, links.values())).encode()).hexdigest()[:16]
        made = cache_folder() / f"spark-{key}"
        return made if made.is_dir() else _made(made, links)
    except OSError:
        return None


def _made(place: Path, links: dict[str, Path]) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="spark-") as folder:
        new = Path(folder) / "home"
        (new / JARS).mkdir(parents=True)
        for name, target in links.items():
            (new / name).symlink_to(target.absolute())
        try:
            new.rename(place)
        except OSError:
            if not place.is_dir():  # else another process was faster
                raise
    return place
