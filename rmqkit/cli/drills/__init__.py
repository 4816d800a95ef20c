"""`rmqkit fail-master` and `rmqkit drill`."""
