"""The commands `rmqkit fail-master` and `rmqkit drill`."""
