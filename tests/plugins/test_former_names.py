"""Modules that plug-ins import were renamed; their former names still work."""

from rmqkit.cli import cluster_lookup, errors, finding, usage
from rmqkit.runtime import atomic_file, kept


def test_former_modules_give_the_same_objects():
    assert kept.KeptFile is atomic_file.AtomicFile
    assert kept.KeptFileDamaged is atomic_file.AtomicFileDamaged
    assert finding.find_namesrv is cluster_lookup.find_namesrv
    assert finding.local_cluster is cluster_lookup.local_cluster
    assert all(getattr(usage, name) is getattr(errors, name) for name in usage.__all__)
