"""OpenTelemetry spans: a commit, and in it the wait for the latch, how long it was held, and each swap.

Only the API is needed here. Which spans are kept and where they go is the application's business; without a tracer
provider of its own they cost little and go nowhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token
from dataclasses import dataclass

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from commit_coord.events import (
    CommitBegan,
    CommitEnded,
    Event,
    LockAcquired,
    LockEnded,
    LockNotAcquired,
    LockRequested,
    SwapEnded,
)


@dataclass(frozen=True, slots=True)
class _Commit:
    span: Span
    token: Token[Context]


class Traces:
    """A listener that makes spans of what it hears of one catalog.

    Args:
        catalog: An attribute of all of them.
        lock_manager: Likewise.
    """

    def __init__(self, catalog: str, lock_manager: str) -> None:
        self._tracer = trace.get_tracer("commit_coord")
        self._common: dict[str, AttributeValue] = {
            "commit_coord.catalog": catalog,
            "commit_coord.lock_manager": lock_manager,
        }
        self._acquires: dict[str, Span] = {}
        self._holds: dict[str, Span] = {}
        self._commits: dict[tuple[int, str], _Commit] = {}

    def __call__(self, event: Event) -> None:
        """Begin or end a span."""
        match event:
            case CommitBegan(table=table, request_id=request_id):
                span = self._begun("commit", table=table, request_id=request_id)
                # The thread's current span until the end, so that the others become its children.
                token = context.attach(trace.set_span_in_context(span))
                self._commits[threading.get_ident(), request_id] = _Commit(span, token)
            case CommitEnded():
                self._committed(event)
            case LockRequested(request_id=request_id, request=request, scope=scope):
                self._acquires[request_id] = self._begun("acquire", request_id=request_id, locks=request, scope=scope)
            case LockAcquired(request_id=request_id, request=request, scope=scope, generation=generation):
                _end(self._acquires.pop(request_id, None), outcome="granted")
                hold = self._begun("hold", request_id=request_id, locks=request, scope=scope)
                if generation is not None:
                    hold.set_attribute("commit_coord.generation", generation)
                self._holds[request_id] = hold
            case LockNotAcquired(request_id=request_id, outcome=outcome):
                _end(self._acquires.pop(request_id, None), failed=outcome != "carried", outcome=outcome)
            case LockEnded(request_id=request_id, lost=lost):
                _end(self._holds.pop(request_id, None), failed=lost, outcome="lost" if lost else "released")
            case SwapEnded(table=table, request_id=request_id, result=result, took_ms=took_ms):
                ended_ns = time.time_ns()
                span = self._begun(
                    "swap",
                    kind=SpanKind.CLIENT,
                    start_ns=ended_ns - int(took_ms * 1e6),
                    table=table,
                    request_id=request_id,
                )
                _end(span, failed=result != "SWAPPED", end_ns=ended_ns, result=result)

    def _begun(
        self, name: str, *, kind: SpanKind = SpanKind.INTERNAL, start_ns: int | None = None, **facts: AttributeValue
    ) -> Span:
        return self._tracer.start_span(
            f"commit_coord.{name}", kind=kind, start_time=start_ns, attributes=self._common | _attributes(facts)
        )

    def _committed(self, event: CommitEnded) -> None:
        commit = self._commits.pop((threading.get_ident(), event.request_id), None)
        if commit is None:
            return  # began before anybody listened
        context.detach(commit.token)
        _end(
            commit.span,
            failed=event.status != "SUCCESS",
            status=event.status,
            waited_ms=event.waited_ms,
            held_ms=event.held_ms,
            tries=event.tries,
            rebased=event.rebased,
            carried=event.carried,
        )


def _end(span: Span | None, *, failed: bool = False, end_ns: int | None = None, **facts: AttributeValue) -> None:
    if span is None:
        return
    span.set_attributes(_attributes(facts))
    if failed:
        span.set_status(StatusCode.ERROR, ", ".join(f"{name}={value!s}" for name, value in facts.items()))
    span.end(end_ns)


def _attributes(facts: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {f"commit_coord.{name}": value for name, value in facts.items()}


@contextmanager
def serving_span(
    headers: Mapping[str, str], *, method: str, route: str, catalog: str
) -> Iterator[Callable[[int], None]]:
    """Make a request to a server the current span of the thread in the block; yield what takes its status.

    Args:
        headers: Of the request; ``traceparent`` names the client's span.
        method: Of the request.
        route: Likewise.
        catalog: That it is for.
    """
    facts = {"http.request.method": method, "http.route": route, "commit_coord.catalog": catalog}
    tracer = trace.get_tracer("commit_coord")
    with tracer.start_as_current_span(
        "commit_coord.request", context=extract(headers), kind=SpanKind.SERVER, attributes=facts
    ) as span:

        def answered(status: int) -> None:
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(StatusCode.ERROR)

        yield answered
