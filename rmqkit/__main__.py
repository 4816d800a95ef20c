"""`python -m rmqkit` is the command `rmqkit`."""

from rmqkit.cli.main import run

if __name__ == "__main__":
    run()
