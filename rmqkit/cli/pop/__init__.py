"""Commands for pop consumption: `rmqkit consume --pop`, `rmqkit group pop` and `group mode`."""
