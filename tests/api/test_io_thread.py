"""The I/O thread of public objects: shared, ended, lost, forked; programs that end or are
interrupted.
"""

import os
import signal
import subprocess
import sys
import threading
from textwrap import dedent

import pytest

from rmqkit import Admin, Message, Producer, PullConsumer, PushConsumer
from rmqkit.errors import ClientClosed


def io_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("rmqkit-io")]


def test_all_objects_share_one_thread_that_ends_with_the_last(own):
    before = len(io_threads())
    # The fixture's clients use the same name servers; another instance name separates them.
    options = {"namesrv": own.namesrv, "instance_name": own.name("shared")}
    made = [Admin(**options), Producer("P", **options), PullConsumer("C1", **options), PushConsumer("C2", **options)]
    assert len(io_threads()) == before + 1
    for each in made:
        assert len(io_threads()) == before + 1
        each.close()
    assert len(io_threads()) == before


def test_a_second_consumer_of_a_group_is_another_member(own):
    group = own.group()
    first, second = own.pull_consumer(group), own.pull_consumer(group)
    assert first._io.client_id != second._io.client_id


def test_when_the_thread_is_lost_nobody_waits_for_ever(own, caplog):
    producer = own.closes(Producer("P", namesrv=own.namesrv, instance_name=own.name("broken")))
    consumer = own.closes(PullConsumer("C", namesrv=own.namesrv, instance_name=own.name("broken")))
    topic = own.topic()
    consumer.assign(consumer.queues(topic))
    polled = []

    def poll():
        try:
            consumer.poll(60_000)
        except ClientClosed as error:
            polled.append(error)

    waiting = threading.Thread(target=poll)
    waiting.start()

    def broken():
        raise ZeroDivisionError("an invariant")

    producer._io.post(broken)
    waiting.join(20)
    assert polled
    assert "an invariant" in str(polled[0])
    for _ in range(2):
        with pytest.raises(ClientClosed, match="create a new client"):
            producer.send(Message(topic, b"x"))
    assert "an invariant" in caplog.text
    with Producer("P", namesrv=own.namesrv, instance_name=own.name("broken")) as another:
        assert another.send(Message(topic, b"x")).is_ok


# --- programs


def program(own, text, *words, **popen):
    env = {**own.running.env, "PYTHONPATH": os.getcwd()}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", dedent(text), *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **popen,
    )


def ended(process, code=0):
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    return out, err


def test_a_program_that_closes_nothing_ends_by_itself(own):
    topic = own.topic()
    out, err = ended(
        program(
            own,
            """
            import sys, rmqkit
            producer = rmqkit.Producer("P")
            consumer = rmqkit.PushConsumer("C-" + sys.argv[1], consume_from="first")
            consumer.subscribe(sys.argv[1])
            consumer.start(lambda message: None)
            print(producer.send(rmqkit.Message(sys.argv[1], b"x")).status)
            """,
            topic,
        )
    )
    assert out == "SEND_OK\n"
    assert err == ""


def test_a_forked_child_is_refused_and_may_make_its_own(own):
    topic = own.topic()
    out, err = ended(
        program(
            own,
            """
            import os, sys, rmqkit
            from rmqkit.errors import ClientForked
            topic = sys.argv[1]
            producer = rmqkit.Producer("P")
            reader = rmqkit.PullConsumer("C-" + topic)
            reader.assign(reader.queues(topic))
            consumer = rmqkit.PushConsumer("D-" + topic)
            admin = rmqkit.Admin()
            producer.send(rmqkit.Message(topic, b"parent"))
            pid = os.fork()
            if pid == 0:
                refused = 0
                for call in (
                    lambda: producer.send(rmqkit.Message(topic, b"x")),
                    lambda: producer.send_async(rmqkit.Message(topic, b"x")),
                    lambda: reader.poll(10_000),
                    lambda: consumer.subscribe(topic),
                    lambda: admin.topics(),
                ):
                    try:
                        call()
                    except ClientForked as error:
                        assert "create a new one" in str(error) and "\\n" not in str(error)
                        refused += 1
                for each in (producer, reader, consumer, admin):
                    each.close()
                with rmqkit.Producer("P") as mine:
                    status = mine.send(rmqkit.Message(topic, b"child")).status
                print("child", refused, status, flush=True)
                sys.exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            print("parent", producer.send(rmqkit.Message(topic, b"parent")).status)
            """,
            topic,
        )
    )
    assert out == "child 5 SEND_OK\nparent SEND_OK\n"
    assert err == ""


def test_ctrl_c_interrupts_a_call_that_waits_for_an_answer(own, heeds_ctrl_c):
    """Ctrl-C interrupts a call that waits for a stalled broker."""
    topic = own.topic()
    process = program(
        own,
        """
        import os, signal, sys, rmqkit
        from rmqkit import Message
        producer = rmqkit.Producer("P", send_msg_timeout_ms=60_000)
        for queue in producer.queues(sys.argv[1]):
            producer.send(Message(sys.argv[1], b"x"), queue)
        print("ready", flush=True)
        sys.stdin.readline()
        queue = producer.queues(sys.argv[1])[0]
        try:
            print("sending", flush=True)
            producer.send(Message(sys.argv[1], b"x"), queue, timeout_ms=60_000)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print("interrupted", flush=True)
            os._exit(0)
        """,
        topic,
        stdin=subprocess.PIPE,
    )
    assert process.stdout.readline() == "ready\n"
    own.cluster.pause("broker-a:0")
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "sending\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)


def test_importing_rmqkit_loads_no_client():
    text = "import sys, rmqkit; print([m for m in sys.modules if m.startswith('rmqkit.')])"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "[]\n"
