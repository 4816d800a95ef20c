"""A setting that works is read by somebody: no field of a section without code that looks at it."""

from __future__ import annotations

import ast
from pathlib import Path

import rmqkit
from rmqkit.settings.build import field_names

ROOT = Path(rmqkit.__file__).parent

# Fields whose reader is still being built. This list only gets shorter.
NOT_YET = {
    "commit_log.check_crc_on_recover",
    "consume_queue.put_msg_index_hight_water",
    "flush.commit_interval_commit_log_ms",
    "flush.flush_commit_log_timed",
    "index.max_hash_slot_num",
    "index.max_index_num",
    "index.max_msgs_num_batch",
    "index.message_index_enable",
    "index.message_index_safe",
    "retention.clean_file_forcibly_enable",
    "retention.clean_resource_interval_ms",
    "retention.delete_commit_log_files_interval_ms",
    "retention.delete_consume_queue_files_interval_ms",
    "retention.delete_file_batch_max",
    "retention.delete_when",
    "retention.disk_max_used_space_ratio",
    "retention.disk_space_clean_forcibly_ratio",
    "retention.disk_space_warning_level_ratio",
    "retention.file_reserved_time_hours",
}


def attributes_read() -> set[str]:
    """The name of every attribute that code outside the settings themselves loads."""
    names: set[str] = set()
    for path in ROOT.rglob("*.py"):
        if path.is_relative_to(ROOT / "settings") or path == ROOT / "config.py":
            continue
        tree = ast.parse(path.read_text())
        names.update(
            node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
    return names


def test_every_field_of_a_section_is_read_somewhere():
    read = attributes_read()
    assert {field for field in field_names() if field.partition(".")[2] not in read} <= NOT_YET


def test_the_list_of_exceptions_names_real_fields():
    assert field_names() >= NOT_YET
