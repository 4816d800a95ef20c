"""Plans the batches of a stream, without Spark: offsets in, offsets out, over the
`Topics` of a cluster.

Spark calls, in its streaming process on the driver:

    begin()                     once per checkpoint: the first offsets
    freeze()                    with AvailableNow: read only what exists now
    advance(start)              before each batch: its end; `start` itself if there is nothing to do
    ranges(start, end)          what the batch reads; after a restart, for an unfinished batch, this
                                comes before any `advance`
    done(end)                   a batch is finished; called one batch late

Rules:

- A queue that is not in the current state of the cluster keeps its offset: routes disappear for a
  while, and broker groups fail and return.
- A new queue enters with its smallest offset and is read from the next batch on.
- The end of a queue at a slave can only limit a batch. An end below our offset is a loss only if
  the master reports it.
- For a group that does not respond nothing is planned, so that the other groups continue.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rmqkit.errors import ConfigError, PeerUnreachable, RmqkitError
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source import bounds
from rmqkit.spark.source.ranges import (
    DataLoss,
    Ends,
    OffsetRange,
    QueueClosed,
    QueueKey,
    between,
    clusters,
    count,
    flat,
    nested,
    share,
    waiting,
)
from rmqkit.spark.source.topics import Topics, TopicSnapshot

LOOK_PAUSE_S = 0.5
LOOK_EVERY_MS = 100
#: Assumed size of a message in bytes, if none can be measured.
SIZE_UNKNOWN = 1024
#: Limit of the queues that are measured for `maxBytesPerTrigger`: those with the most to read.
MEASURED_MAX = 64

log = logging.getLogger("rmqkit.spark")


class BrokerDown(RmqkitError):
    """A query cannot continue without a broker group or name server that does not respond."""


class StreamPlan:
    """Plans one stream; a batch uses only `complete_snapshot`.

    Offsets are in the form in which Spark stores them (`ranges`).
    """

    def __init__(
        self,
        options: SourceOptions,
        view: Topics,
        *,
        clock: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options, self.view = options, view
        self._clock, self._sleep = clock, sleep
        #: Whether the checkpoint, if there is one, was checked.
        self._accepted = False
        self._frozen = False
        #: With AvailableNow: the snapshot up to which the query reads.
        self._target: TopicSnapshot | None = None
        #: The last known end of each queue, for reports.
        self._known: Ends = {}
        self._clusters: tuple[str, ...] = ()
        #: The offset of `endingTimestamp` in each queue that has reached that time.
        self._caps: Ends = {}
        self._batch_ms: int | None = None
        self._looked_ms = 0
        #: The last `advance` found nothing to read.
        self._rests = False
        self._committed: Ends = {}
        #: The warnings that were logged; each is logged once.
        self._warned: set[str] = set()

    # --- what Spark calls

    def begin(self) -> dict[str, Any]:
        """Return the first offsets of a new query.

        Raises NoRoute, ConfigError, DataLoss or BrokerDown.
        """
        seen = self.complete_snapshot()
        bounds.check_topics(self._options, seen, self.view)
        begins = bounds.begins_of(self._options, self.view, seen)
        self._accepted = True
        self._note(seen)
        return self._offsets(begins, seen, {})

    def freeze(self) -> None:
        """Read only up to the state of the cluster at the next `advance` (AvailableNow)."""
        self._frozen = True

    def advance(self, start: Mapping[str, Any], *, limited: bool = True) -> dict[str, Any]:
        """Return the end of the next batch. Without `limited`, the options do not limit its size.

        Raises BrokerDown, ConfigError or DataLoss.
        """
        begins = flat(start)
        seen = self._seen(start, begins)
        if seen is None:
            return dict(start)
        self._publish(begins)
        self._rests = True
        ends = self._ends(begins, seen)
        ready = waiting(begins, ends)
        if limited:
            if self._holds_back(count(ready)):
                return dict(start)
            # A range whose messages are all gone costs nothing: skip it in one batch.
            ready = [each for each in ready if each.end != seen.begins.get(each.key)]
            ends |= {each.key: each.begin for each in ready} | {each.key: each.end for each in self._allowed(ready)}
        if ends == begins:
            return dict(start)
        # A topic that was recreated since the last batch may already be longer than our offsets.
        self._check_cluster(start, seen)
        self._batch_ms = self._clock()
        self._rests = False
        return self._offsets(ends, seen, start)

    def latest(self) -> dict[str, Any] | None:
        """Return the last known ends of the queues, for the lag in Spark's progress."""
        return nested(self._known, self._clusters) if self._known else None

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[OffsetRange]:
        """Return what a batch reads, split into Spark's partitions.

        Raises BrokerDown, ConfigError or DataLoss.
        """
        if not self._accepted:
            self._seen(start, flat(start), needed=True)
        return self._options.partitions(between(start, end, may_go_back=not self._options.fail_on_data_loss))

    def done(self, end: Mapping[str, Any]) -> None:
        """Commit the end of a finished batch for the option `commitGroup`."""
        self._publish(flat(end))

    # --- looking

    def _seen(self, start: Mapping[str, Any], begins: Ends, *, needed: bool = False) -> TopicSnapshot | None:
        """Return the snapshot for a batch.

        If no name server responds, return None; if the snapshot is `needed`, raise BrokerDown after
        `maxWaitForBroker`.
        """
        if self._target is not None:
            return self._target
        known = list(begins)
        if not self._accepted:
            bounds.check_choice(self._options, start)
        seen = self._look(known, patient=needed or self._frozen)
        if seen is None:
            return None
        if not self._accepted:
            self._check_cluster(start, seen)
            self._accepted = True
        if self._frozen:
            seen = self._target = self.complete_snapshot(known)
        self._note(seen)
        return seen

    def complete_snapshot(self, known: Sequence[QueueKey] = ()) -> TopicSnapshot:
        """Return a snapshot for which every group responded, including those of the `known` queues.

        Raises BrokerDown if a group does not respond in time.
        """
        until_ms = self._clock() + self._options.max_wait_for_broker
        while absent := self._absences(seen := self.view.look(known), known):
            why = "; ".join(f"{name}: {reason}" for name, reason in absent.items())
            if self._options.when_down == "fail" or self._clock() >= until_ms:
                choices = f"whenDown={self._options.when_down}, maxWaitForBroker={self._options.max_wait_for_broker} ms"
                raise BrokerDown(f"no answer from {why} ({choices})")
            self._warn(f"waiting for {why}")
            self._sleep(LOOK_PAUSE_S)
        return seen

    def _absences(self, seen: TopicSnapshot, known: Sequence[QueueKey]) -> dict[str, str]:
        """Return the groups that are missing in a snapshot (broker and topic), with the reasons.

        A topic without any route may have been deleted. If loss is allowed, its groups are not
        missing.
        """
        routed = {key.topic for key in [*seen.ends, *seen.closed]} | {topic for topic, _ in seen.silent}
        absent = dict(sorted(seen.silent.items()))
        for key in known:
            if key not in seen.ends and key not in seen.closed and key.group not in seen.silent:
                if key.topic in routed:
                    absent[key.group] = "the name servers show no such broker for this topic"
                elif self._options.fail_on_data_loss:
                    absent[key.group] = "no name server knows the topic (if it was deleted, set failOnDataLoss=false)"
        return {f"broker {broker} (topic {topic})": why for (topic, broker), why in absent.items()}

    def _look(self, known: Sequence[QueueKey], *, patient: bool) -> TopicSnapshot | None:
        """Return a snapshot, or None if no name server responds.

        With `patient`, keep trying for `maxWaitForBroker`, then raise BrokerDown.
        """
        until_ms = self._clock() + self._options.max_wait_for_broker
        # Spark calls `advance` every 10 ms while there is nothing to read. Ask brokers less often.
        passed_ms = self._clock() - self._looked_ms
        if self._rests and passed_ms < LOOK_EVERY_MS:
            self._sleep((LOOK_EVERY_MS - passed_ms) / 1000)
        self._looked_ms = self._clock()
        while True:
            try:
                return self.view.look(known)
            except PeerUnreachable as error:
                if self._options.when_down == "fail" or (patient and self._clock() >= until_ms):
                    raise BrokerDown(f"no answer from the name servers: {error}") from None
                self._warn(f"no name server answers, the query waits: {error}")
            if not patient:
                return None
            self._sleep(LOOK_PAUSE_S)

    def _note(self, seen: TopicSnapshot) -> None:
        self._known = dict(sorted({**self._known, **seen.ends}.items()))
        self._clusters = tuple(sorted({*self._clusters, *seen.clusters}))

    # --- how far

    def _ends(self, begins: Ends, seen: TopicSnapshot) -> Ends:
        """Return the offset up to which each queue could be read; for new queues, their begin."""
        down = self._absences(seen, list(begins))
        if down and self._options.when_down == "fail":
            raise BrokerDown("; ".join(f"no answer from {name}: {why}" for name, why in down.items()))
        for name, why in down.items():
            self._warn(f"nothing is read from {name} until it answers: {why}")
        ends = {key: self._end(key, offset, seen) for key, offset in begins.items()}
        for key, cap in self._end_caps(seen).items():
            if key in begins:
                ends[key] = min(ends[key], max(cap, begins[key]))
        return dict(sorted({**seen.begins, **ends}.items()))

    def _end(self, key: QueueKey, offset: int, seen: TopicSnapshot) -> int:
        if key not in seen.ends:
            if seen.closed.get(key, 0) > offset:
                self._lose(QueueClosed(key, offset, seen.closed[key], bounds.FEWER))
            return offset
        error = bounds.loss_at(seen, key, offset)
        if error is not None:
            self._lose(error)
            return seen.begins[key]
        # The end of a slave may be below our offset, because it is behind its master.
        return max(offset, seen.ends[key])

    def _end_caps(self, seen: TopicSnapshot) -> Ends:
        options, end_ms = self._options, self._options.ending_timestamp
        if end_ms is None:
            ends = options.ending_offsets
            return {} if isinstance(ends, str) else {key: offset for key, offset in ends.items() if offset >= 0}
        reached = [key for key, newest in seen.newest_ms.items() if newest >= end_ms and key not in self._caps]
        try:
            self._caps |= self.view.at_time(reached, end_ms) if reached else {}
        except PeerUnreachable as error:
            if options.when_down == "fail" or self._frozen:
                raise BrokerDown(f"endingTimestamp cannot be looked up: {error}") from None
            self._warn(f"endingTimestamp cannot be looked up now, the affected queues wait: {error}")
            return self._caps | dict.fromkeys(reached, 0)
        return self._caps

    def _holds_back(self, messages: int) -> bool:
        least = self._options.min_messages_per_trigger
        if not least or self._frozen or self._batch_ms is None or messages >= least:
            return False
        return self._clock() - self._batch_ms < self._options.max_trigger_delay

    def _allowed(self, ready: list[OffsetRange]) -> list[OffsetRange]:
        limit, bytes_max = self._options.max_messages_per_trigger, self._options.max_bytes_per_trigger
        if bytes_max and ready:
            largest = sorted(ready, key=lambda each: -each.size)[:MEASURED_MAX]
            found = messages_for(bytes_max, ready, self.view.sizes(largest))
            limit = min(limit or found, found)
        return share(ready, limit) if limit else ready

    def _lose(self, error: DataLoss) -> None:
        if self._options.fail_on_data_loss:
            raise error
        self._warn(f"continuing without the lost messages: {error}")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    # --- checkpoints

    def _check_cluster(self, start: Mapping[str, Any], seen: TopicSnapshot) -> None:
        why = bounds.check_cluster(self._options, self.view, start, seen)
        if why and self._options.fail_on_data_loss:
            raise ConfigError(why)
        if why:
            self._warn(f"continuing at the offsets of the checkpoint, without the messages before them: {why}")

    def _offsets(self, ends: Ends, seen: TopicSnapshot, start: Mapping[str, Any]) -> dict[str, Any]:
        offsets: dict[str, Any] = nested(ends, {*clusters(start), *seen.clusters})
        witness = bounds.witness_of(ends, seen) or start.get(bounds.WITNESS)
        return {bounds.WITNESS: witness, **offsets} if witness else offsets

    def _publish(self, begins: Ends) -> None:
        """Commit offsets to `commitGroup`: all messages before a batch's start have been read."""
        group = self._options.commit_group
        if not group or begins == self._committed:
            return
        changed = {key: offset for key, offset in begins.items() if self._committed.get(key) != offset}
        try:
            problems = self.view.commit(group, changed)
        except RmqkitError as error:
            problems = [str(error)]
        if problems:
            self._warn(f"the query's offsets were not committed to group {group}: {problems[0]}")
        else:
            self._committed = dict(begins)


def messages_for(bytes_max: int, ready: Sequence[OffsetRange], sizes: Mapping[QueueKey, float]) -> int:
    """Return how many messages, divided among the ranges by their size, make `bytes_max` bytes.

    The result is at least 1.
    """
    measured = [each for each in ready if each.key in sizes]
    weight = count(measured)
    average = sum(each.size * sizes[each.key] for each in measured) / weight if weight else SIZE_UNKNOWN
    return max(1, int(bytes_max / average))
