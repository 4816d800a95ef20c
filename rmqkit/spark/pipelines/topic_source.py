"""The options with which pipelines read topics through the data source `rocketmq`."""

from collections.abc import Mapping, Sequence

from rmqkit.spark.options import parse

SOURCE = "rocketmq"


def source_options(
    where: str, topics: Sequence[str], namesrv: str | None, options: Mapping[str, str] | None, start: str = ""
) -> dict[str, str]:
    """Return checked options for a query of these topics; `where` is `batch` or `stream`.

    `start` are the `startingOffsets`, if the options choose no start. Raises ConfigError.
    """
    given = {key: str(value) for key, value in (options or {}).items()} | {"subscribe": ",".join(topics)}
    if namesrv:
        given["namesrv"] = namesrv
    if start and not {key.lower() for key in given} & {"startingoffsets", "startingtimestamp"}:
        given["startingOffsets"] = start
    # Resolve the name servers here: the environment of Spark's processes may name others.
    return given | {"namesrv": ";".join(parse(given, where).namesrv)}
