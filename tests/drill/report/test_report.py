"""The report: one self-contained file that states what the verdict states."""

import re

import pytest

from rmqkit.drill import runs
from rmqkit.drill.engine import Outcome
from rmqkit.drill.history import History
from rmqkit.drill.promises import PROMISES
from rmqkit.drill.promises.contract import Finding, Judgement
from rmqkit.drill.report import verdict_words
from rmqkit.drill.report.html import page
from rmqkit.drill.report.row_lines import line
from rmqkit.drill.verdict import PromiseResult, Verdict, verdict_of
from tests.drill.hand import PLAN, whole
from tests.tidy.tree import ROOT


def run_of(hand, tmp_path):
    """Save a run with that history; return its folder and its verdict."""
    found = []
    for name, make in PROMISES.items():
        promise = make()
        if promise.applies(PLAN):
            found.append(PromiseResult(name, promise.text, promise.check(hand.history, PLAN)))
    verdict = verdict_of(hand.history, found, node="broker-a-0", proof="it is <gone>", why="")
    run = runs.new_run(tmp_path, PLAN)
    runs.save(run, PLAN, hand.history, Outcome(verdict), {"broker-a-0": ["a line", "another"]})
    return run, verdict


@pytest.fixture
def broken(tmp_path):
    return run_of(whole().send("gone", 4, at_ms=2_700).unknown("dunno", at_ms=1_100), tmp_path)


def test_a_run_is_kept_whole(broken, tmp_path):
    run, verdict = broken
    assert Verdict.from_json(verdict.as_json()) == verdict
    assert runs.load_verdict(run) == verdict
    assert (run / "logs" / "broker-a-0.log").read_text() == "a line\nanother\n"
    assert runs.find(tmp_path, run.name) == run
    with pytest.raises(runs.PlanError, match=f"did you mean {run.name}"):
        runs.find(tmp_path, run.name + "x")


def test_the_text_names_the_broken_promise_and_what_it_promises(broken):
    _, verdict = broken
    words = verdict_words.of(PLAN, verdict)
    assert "acknowledged-survive" in words.headline
    assert "kill of broker-a-0, mode quorum+async-flush, seed 1. Proof: it is <gone>." in words.broke
    assert "quorum, 2 in sync and ASYNC_FLUSH, a message that was answered SEND_OK survives." in words.promised
    assert "1 unknown" in words.seen


def test_a_fault_that_never_began_is_not_said_to_have_broken_anything():
    verdict = verdict_of(History(), [], node="broker-a-0", proof="", why="no steady state")
    words = verdict_words.of(PLAN, verdict)
    assert words.headline == "Inconclusive: the drill proves nothing: no steady state."
    assert words.broke.startswith("Planned fault: kill of broker-a-0")
    assert words.promised == words.seen == ""


def test_the_report_is_one_file_that_says_it_all(broken):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    run, verdict = broken
    text = page(run, "rmqkit drill replay it")
    assert not re.search(r'(?:src|href)="(?!#|data:)', text), "nothing from elsewhere"
    assert not re.search(r"<(?:link|script|iframe)|@import|url\((?!#|data:)", text)
    assert "it is &lt;gone&gt;" in text
    assert text.count("<svg") == 1
    for each in verdict.promises:
        assert each.name in text
    assert "<code>gone</code>" in text
    assert "is never counted as lost" in text
    assert "<pre>rmqkit drill replay it</pre>" in text
    for event in verdict.timeline:
        assert verdict_words.plain(event.what) in text


def test_names_in_documents_stay_and_people_read_plain_words(broken):
    _, verdict = broken
    progress = next(each for each in verdict.as_json()["promises"] if each["name"] == "progress-forward")
    assert "given again at takeover" in progress["finding"]["counts"]
    seen = Finding(Judgement.VALID, 1, {"given again at takeover": 3, "acting ms": 1_200, "sends": 9})
    assert verdict_words.notes(PromiseResult("progress-forward", "", seen)) == (
        "messages redelivered at takeover: 3; slave acting, ms: 1,200; sends: 9"
    )
    # Each name with plain words must be one that the drills use: an event, a count or a figure.
    texts = (path.read_text() for path in (ROOT / "rmqkit/drill").rglob("*.py"))
    sources = "\n".join(text.rpartition("def plain(")[2] for text in texts)
    composed = {f"{what} {at}" for what in ("given back", "given again") for at in ("at takeover", "at return")}
    composed |= {"lost prefix", "lost middle", "lost postfix"}
    assert [name for name in verdict_words.PLAIN if f'"{name}"' not in sources and name not in composed] == []


def test_the_rows_of_a_message_are_lines_of_text(broken):
    run, _ = broken
    told = [line(row) for row in runs.load_history(run).story("a")]
    assert "writer-0: send answered SEND_OK after 5 ms: broker-a queue 0 offset 0" in told
    assert "broker-a-1: found in the last reading at broker-a queue 0 offset 0" in told
    assert any(text.startswith("— fault begins") for text in told)
