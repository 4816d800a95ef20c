"""The report of a drill: texts, plots, the HTML page, and comparisons of runs."""
