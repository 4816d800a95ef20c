"""Each hook with an external plug-in, installed as pip does it, and with the code that calls it.

Every hook needs a `test_hook_*` here; the first test checks that.
"""

import subprocess
import sys

from rmqkit import plugins
from rmqkit.api import choices
from rmqkit.client.fault_policy import QueueRing
from rmqkit.config import from_values
from rmqkit.drill.engine import Engine
from rmqkit.process.node_specs import controller_spec
from rmqkit.testing import FaultLab, SimBroker
from rmqkit.testing.brokers import NAME
from rmqkit.testing.fault_policies import queues_of
from rmqkit.wire.bodies import LockBatchAnswer, LockBatchBody, MessageQueue
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.record import iter_records
from tests.helpers.script import Script


def test_every_hook_has_its_test():
    tested = {name.removeprefix("test_hook_") for name in globals() if name.startswith("test_hook_")}
    assert tested == {hook.removeprefix("rmqkit_") for hook in plugins.HOOKS}


def test_every_hook_has_its_contract():
    assert set(plugins.CONTRACTS) == set(plugins.HOOKS)


def test_hook_storage_engines(install):
    install(
        "box_engine",
        """
        from rmqkit.store import ENGINES

        def make(parts):
            engine = ENGINES["mapped"](parts)
            engine.boxed = parts.config.plugins.values["box"]["label"]
            return engine

        @hookimpl
        def rmqkit_storage_engines():
            return {"box": make}
        """,
    )
    broker = SimBroker("storageEngine=box", "plugin.box.label=mine")
    assert broker.node.store.boxed == "mine"
    assert broker.send("T", b"hello").ext["queueOffset"] == "0"
    assert not hasattr(SimBroker("storageEngine=mapped").node.store, "boxed")


def test_hook_fault_policies(install):
    install(
        "box_policy",
        """
        class First:
            def pick(self, ring, broker_failed, now_ms):
                return ring.queues[0]

            def update(self, broker_name, latency_ms, *, isolate, reachable, now_ms):
                pass

        @hookimpl
        def rmqkit_fault_policies():
            return {"first": First}
        """,
    )
    policy = choices.choose_fault_policy("first")
    ring = QueueRing(queues_of("broker-a", "broker-b"), 0)
    assert [policy.pick(ring, None, 0) for _ in range(3)] == [ring.queues[0]] * 3


def test_hook_lock_modes(install):
    install(
        "box_locks",
        """
        from rmqkit.broker.locks import LOCK_MODES

        class Even:
            def __init__(self, broker):
                self.inner = LOCK_MODES["loose"](broker)

            def lock(self, group, client_id, queues, **more):
                even = [queue for queue in queues if queue.queue_id % 2 == 0]
                self.inner.lock(group, client_id, even, **more)

            def __getattr__(self, name):
                return getattr(self.inner, name)

        @hookimpl
        def rmqkit_lock_modes():
            return {"even": Even}
        """,
    )
    queues = [MessageQueue("T", "broker-a", each) for each in range(4)]
    asked = LockBatchBody(client_id="c", consumer_group="G", mq_set=queues).encode()

    def granted(broker):
        answer = broker.ask(RequestCode.LOCK_BATCH_MQ, None, asked)
        return [queue.queue_id for queue in LockBatchAnswer.decode(answer.body).lock_ok_mq_set]

    assert granted(SimBroker("lockMode=even")) == [0, 2]
    assert granted(SimBroker()) == [0, 1, 2, 3]


def test_hook_escape_strategies(install):
    install(
        "box_escape",
        """
        from rmqkit.store.contract import PutStatus

        class Box:
            def __init__(self, broker):
                self.messages = []

            def put(self, message, then):
                self.messages.append(message)
                then(PutStatus.PUT_OK)

            def waiting(self):
                return len(self.messages)

            def facts(self):
                return {"boxed": str(len(self.messages))}

            def stop(self):
                self.messages.clear()

        @hookimpl
        def rmqkit_escape_strategies():
            return {"box": Box}
        """,
    )
    broker = SimBroker("escapeStrategy=box")
    broker.send("T", b"late", properties={"DELAY": "1"})
    broker.world.call(NAME, lambda node: node.roles.set_acting(True, "the test says so"))
    broker.advance(5_000)
    (message,) = broker.node.escape.strategy.messages
    assert (message.put.topic, message.put.body, message.origin) == ("T", b"late", "broker-a:SCHEDULE:1:0")
    facts = broker.node.view.facts()
    assert (facts["escapeStrategy"], facts["boxed"], facts["escaped"], facts["escapeWaiting"]) == ("box", "1", "1", "1")
    assert SimBroker().node.escape.name == "local"


def test_hook_filters(install):
    install(
        "box_filter",
        """
        from rmqkit.broker.filters.contract import FilterError

        class Exactly:
            match_tags = None

            def compile(self, expression):
                name, separator, value = expression.partition(":")
                if not separator:
                    raise FilterError("write name:value")
                compiled = Exactly()
                compiled.match_properties = lambda properties: properties.get(name) == value
                return compiled

        @hookimpl
        def rmqkit_filters():
            return {"EXACTLY": Exactly}
        """,
    )
    broker = SimBroker("enablePropertyFilter=true")
    for colour in ("red", "blue"):
        broker.send("T", colour.encode(), properties={"colour": colour})

    def pulled(expression):
        fields = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "subscription": expression,
            "expressionType": "EXACTLY",
        }
        return broker.ask(RequestCode.PULL_MESSAGE, fields)

    assert [record.body for record in iter_records(pulled("colour:blue").body)] == [b"blue"]
    refused = pulled("colour")
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "write name:value" in refused.remark


def test_hook_allocators(install):
    install(
        "box_allocator",
        """
        class Eldest:
            name = "ELDEST"

            def allocate(self, group, client_id, queues, client_ids):
                return list(queues) if client_id == client_ids[0] else []

        @hookimpl
        def rmqkit_allocators():
            return {"eldest": Eldest}
        """,
    )
    allocator = choices.choose_allocator("eldest")
    queues = queues_of("broker-a")
    assert allocator.allocate("G", "a", queues, ["a", "b"]) == queues
    assert allocator.allocate("G", "b", queues, ["a", "b"]) == []


HANDLERS = """
    from rmqkit.access.rules import any_user
    from rmqkit.runtime.calls import Handlers
    from rmqkit.wire.schema import Ext

    class Question(Ext, kw_only=True):
        topic: str

    def make(settings):
        rows = Handlers()

        @rows.handles(71_999, Question, access=any_user)
        def answer(broker, call):
            return call.ok({"known": str(call.args.topic in broker.topics.by_name), "word": settings.get("word", "")})

        return rows

    @hookimpl
    def rmqkit_handlers():
        return {"asker": make}
"""


def test_hook_handlers(install):
    install("box_handlers", HANDLERS)
    broker = SimBroker("plugins=asker", "plugin.asker.word=please")
    answer = broker.ask(71_999, {"topic": "TBW102"})
    assert answer.ext == {"known": "True", "word": "please"}
    assert broker.ask(71_999).code == ResponseCode.SYSTEM_ERROR, "a mandatory field is missing"
    silent = SimBroker("plugin.asker.word=please")
    assert silent.ask(71_999, {"topic": "T"}).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_hook_duties(install):
    install(
        "box_duty",
        """
        def make(broker, settings):
            beats = broker.plugins["heart"] = []

            def run(now_ms):
                beats.append((now_ms, broker.store.offset_max))
                return now_ms + int(settings["everyMillis"])

            return run

        @hookimpl
        def rmqkit_duties():
            return {"heart": make}
        """,
    )
    broker = SimBroker("plugins=heart", "plugin.heart.everyMillis=500")
    broker.send("T", b"hello")
    before = len(broker.node.view.plugins["heart"])
    broker.advance(5_000)
    beats = broker.node.view.plugins["heart"]
    assert len(beats) - before == 10
    assert beats[-1][1] == broker.node.store.offset_max > 0
    assert SimBroker().node.view.plugins == {}, "installed, but no setting names it"


def test_hook_controller_logs(install):
    install(
        "box_log",
        """
        from rmqkit.controller.single_log import SingleLog

        class Boxed(SingleLog):
            def facts(self):
                return {**super().facts(), "type": "box"}

        @hookimpl
        def rmqkit_controller_logs():
            return {"box": Boxed}
        """,
    )
    config = from_values("controller", {"controllerType": "box", "controllerStorePath": "/controller"})
    spec = controller_spec(config, "c")
    script = Script(lambda ports: spec.make(ports, {"remoting": 9000}))
    assert script.node.log.facts()["type"] == "box"
    assert script.connect().ask(RequestCode.CONTROLLER_GET_METADATA_INFO).ext["isLeader"] == "true"


def test_hook_faults(install):
    """A drill finds the fault by its name, and the engine runs it."""
    install(
        "box_fault",
        """
        from rmqkit.drill.promises.table import Harm

        class Yank:
            name, text, harm = "yank", "pulls the plug", Harm.KILL

            def begin(self, driver, node):
                driver.kill(node)

            def proof(self, driver, node):
                return "" if driver.seen(node)["alive"] else "the plug is out"

            def end(self, driver, node):
                driver.start(node)

        @hookimpl
        def rmqkit_faults():
            return {"yank": Yank}
        """,
    )
    driver = FaultLab()
    verdict = Engine(driver, plugins.load().faults["yank"](), ()).run().verdict
    assert verdict.proof == "the plug is out"
    assert not driver.lacking(), "the fault must end"


def test_hook_promises(install):
    install(
        "box_promise",
        """
        from rmqkit.drill.promises import Broken, judged

        class Never:
            name, text = "never", "nothing is ever sent"

            def applies(self, plan):
                return True

            def check(self, history, plan):
                return judged(1, [Broken(row.key, "was sent") for row in history.sends])

        @hookimpl
        def rmqkit_promises():
            return {"never": Never}
        """,
    )
    loaded = plugins.load()
    promises = [make() for make in loaded.promises.values()]
    driver = FaultLab()
    driver.history.add("send", key="a", invoke_ms=0)
    verdict = Engine(driver, loaded.faults["kill"](), promises).run().verdict
    assert [each.name for each in verdict.broken if each.name == "never"] == ["never"]
    assert verdict.exit_code == 1


COMMAND = """
    def make():
        import typer

        app = typer.Typer()

        @app.command()
        def hello(name: str):
            print(f"hello {name}")

        return app

    @hookimpl
    def rmqkit_commands():
        return {"greet": make}
"""


def rmqkit(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rmqkit.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_hook_commands(install):
    install("box_command", COMMAND)
    done = rmqkit("greet", "you")
    assert (done.stdout, done.stderr, done.returncode) == ("hello you\n", "", 0)
    assert "greet" in rmqkit("--help").stdout
    listed = rmqkit("plugin", "list").stdout.splitlines()
    assert ["commands", "greet", "box_command", "box_command-dist"] in [line.split() for line in listed]
