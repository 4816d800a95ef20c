"""The commands of `rmqkit pipeline`: Spark jobs."""
