"""An S3-compatible server from PyPI (moto) as a process of its own, over real HTTP.

In this process it would wait for Python's lock while deltalake, which holds it, waits for the
server.

`python -m tests.spark.s3_server` prints the port and serves until its stdin ends.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "lakes"
SECRET = "a-secret-of-the-tests"


@contextmanager
def running() -> Iterator[dict[str, str]]:
    """Start a server with a bucket; yield the storage options that reach it."""
    import boto3

    command = [sys.executable, "-W", "ignore", "-m", "tests.spark.s3_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            keys = {"aws_access_key_id": "tests", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
            boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket=BUCKET)
            options = {key.upper(): value for key, value in keys.items()}
            options["AWS_REGION"] = options.pop("REGION_NAME")
            yield {**options, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
        finally:
            server.stdin.close()


def main() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
