"""Request and reply: the sender of a message waits for the consumer's reply.

A price service consumes questions and replies to each. A shop sends questions and waits. The broker
returns each reply to the process that sent the question.

It uses the cluster that NAMESRV_ADDR names (default 127.0.0.1:9876).
"""

import json

from rmqkit import Admin, Message, Producer, PushConsumer
from rmqkit.errors import RequestTimeout

TOPIC = "example-price-questions"
PRICES = {"apple": 30, "pear": 45, "plum": 20}


def price_service(replies: Producer) -> PushConsumer:
    """Return a consumer that answers questions; several of the same group share the work."""
    consumer = PushConsumer("example-prices", consume_from="first")
    consumer.subscribe(TOPIC)

    @consumer.listener
    def answer(message):
        question = json.loads(message.body)
        if question["fruit"] == "unicorn":
            return  # no reply: the shop's request times out
        price = PRICES.get(question["fruit"])
        answer = {"price": price} if price is not None else {"error": f"no {question['fruit']} today"}
        # `reply` addresses the sender and refers to this question.
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

        # Several questions at once: each future gets the reply to its own question.
        questions = [Message(TOPIC, json.dumps({"fruit": fruit})) for fruit in PRICES]
        futures = [shop.request_async(question, timeout_ms=10_000) for question in questions]
        assert [json.loads(future.result().body)["price"] for future in futures] == list(PRICES.values())

        try:
            shop.request(Message(TOPIC, json.dumps({"fruit": "unicorn"})), timeout_ms=1_000)
        except RequestTimeout as error:
            # `error.sent` is True: the question was stored, so a consumer may still be processing
            # it.
            print("a unicorn:", error)
        else:
            raise AssertionError("a unicorn has no price")
    print("all questions answered but one")


if __name__ == "__main__":
    main()
