"""The table of columns gives Spark and Arrow the same schema."""

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType

from rmqkit.errors import ConfigError
from rmqkit.spark.columns import COLUMNS, arrow_schema, checked, ddl


def test_arrows_schema_is_what_spark_makes_of_the_ddl(spark):
    told = DataType.fromDDL(ddl(COLUMNS))
    assert to_arrow_schema(told, timezone="UTC") == arrow_schema(COLUMNS)


def test_a_choice_comes_in_the_tables_order():
    assert checked(["offset", "topic"]) == ("topic", "offset")


def test_a_wrong_name_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match="'ofset' is not a column of a message; did you mean offset"):
        checked(["ofset"])
    with pytest.raises(ConfigError, match="choose from topic, broker"):
        checked(["zzz"])
    with pytest.raises(ConfigError, match="offset is named twice"):
        checked(["offset", "offset"])
