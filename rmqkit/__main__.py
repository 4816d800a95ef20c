"""Run the command `rmqkit` as `python -m rmqkit`."""

from rmqkit.cli.main import run

if __name__ == "__main__":
    run()
