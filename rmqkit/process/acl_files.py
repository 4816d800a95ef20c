"""Reads the files of ACL 1.0 for a broker: `plain_acl.yml`, and those below the folder `acl`.

Source: `acl/.../plain/PlainPermissionManager.java` of 4.9.8 (`getAllAclFiles`).
"""

import os
from collections.abc import Mapping

from rmqkit.access.plain_acl import SIZE_MAX

SUFFIXES = (".yml", ".yaml")
FOLDER = "acl"


def read_acl_files(path: str) -> Mapping[str, bytes]:
    """Return path -> content of the file at `path` and of the YAML files in the folder beside it.

    No file has more than SIZE_MAX + 1 bytes: what is longer is cut there, and refused by the
    reader. Raises OSError.
    """
    found: dict[str, bytes] = {}
    for each in (path, *_below(os.path.join(os.path.dirname(path), FOLDER))):
        try:
            with open(each, "rb") as file:
                found[each] = file.read(SIZE_MAX + 1)
        except FileNotFoundError:
            continue
    return found


def _below(folder: str) -> list[str]:
    """Return the YAML files of a folder and its sub-folders, sorted. Raises OSError.

    Hidden ones are left out: Kubernetes mounts each file a second time in a hidden folder.
    """

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    found: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [each for each in folders if not each.startswith(".")]
        found += [os.path.join(parent, each) for each in names if each.endswith(SUFFIXES) and not each.startswith(".")]
    return sorted(found)
