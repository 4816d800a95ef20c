from rmqkit.store.engines import ENGINES

__all__ = ["ENGINES"]
