"""The report of a drill: words, plots, the HTML page, and comparisons of runs."""
