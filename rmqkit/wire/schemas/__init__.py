"""One schema per request code, by area; names are Java's header classes without `Header`."""
