"""`rmqkit pipeline`: Spark jobs."""
