"""One schema per request code, by area. Names are Java's header classes without `Header`."""
