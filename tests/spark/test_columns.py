"""The table of columns gives Spark and Arrow the same schema."""

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType

from rmqkit.spark.columns import COLUMNS, arrow_schema, ddl


def test_arrows_schema_is_what_spark_makes_of_the_ddl(spark):
    told = DataType.fromDDL(ddl(COLUMNS))
    assert to_arrow_schema(told, timezone="UTC") == arrow_schema(COLUMNS)
