"""The built-in storage engines by the name that the setting `storageEngine` selects.

The module of an engine is imported only when the engine is created.
"""

from rmqkit.store.contract import EngineFactory, EngineParts, StorageEngine


def _mapped(parts: EngineParts) -> StorageEngine:
    from rmqkit.store.mapped import MappedEngine

    return MappedEngine(parts)


def _memory(parts: EngineParts) -> StorageEngine:
    from rmqkit.store.memory import memory_engine

    return memory_engine(parts)


ENGINES: dict[str, EngineFactory] = {"mapped": _mapped, "memory": _memory}
