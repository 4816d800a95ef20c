"""What `rmqkit pipeline stats` draws: a `plot` in a file, and a `page` with tables and the plot."""
