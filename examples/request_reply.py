"""Request and reply: a message whose sender waits for an answer from whoever consumes it.

A price service consumes questions and replies to each; a shop asks and waits. The reply goes back to the very process that
asked, through the broker. Run it against the cluster that NAMESRV_ADDR names (default 127.0.0.1:9876).
"""

import json

from rmqkit import Admin, Message, Producer, PushConsumer
from rmqkit.errors import RequestTimeout

TOPIC = "example-price-questions"
PRICES = {"apple": 30, "pear": 45, "plum": 20}


def price_service(replies: Producer) -> PushConsumer:
    """Answers questions; several may run, in one group, and share the work."""
    consumer = PushConsumer("example-prices", consume_from="first")
    consumer.subscribe(TOPIC)

    @consumer.listener
    def answer(message):
        question = json.loads(message.body)
        if question["fruit"] == "unicorn":
            return  # nobody answers this one: the shop will wait in vain
        price = PRICES.get(question["fruit"])
        answer = {"price": price} if price is not None else {"error": f"no {question['fruit']} today"}
        # `reply` knows who asked and which question this is about.
        replies.send(message.reply(json.dumps(answer)))

    return consumer


def ask(shop: Producer, fruit: str) -> dict:
    reply = shop.request(Message(TOPIC, json.dumps({"fruit": fruit})), timeout_ms=10_000)
    return json.loads(reply.body)


def main() -> None:
    with Admin() as admin:
        admin.create_topic(TOPIC, queue_nums=4)
    with (
        Producer(group="example-price-replies") as replies,
        Producer(group="example-shop") as shop,
        price_service(replies),
    ):
        print("an apple:", ask(shop, "apple"))
        assert ask(shop, "pear") == {"price": 45}
        assert "error" in ask(shop, "mango")

        # Many questions at a time: futures, in any order.
        questions = [Message(TOPIC, json.dumps({"fruit": fruit})) for fruit in PRICES]
        futures = [shop.request_async(question, timeout_ms=10_000) for question in questions]
        assert [json.loads(future.result().body)["price"] for future in futures] == list(PRICES.values())

        try:
            shop.request(Message(TOPIC, json.dumps({"fruit": "unicorn"})), timeout_ms=1_000)
        except RequestTimeout as error:
            # `error.sent`: the question was stored, so somebody may still be working on it.
            print("a unicorn:", error)
        else:
            raise AssertionError("a unicorn has no price")
    print("all questions answered but one")


if __name__ == "__main__":
    main()
