"""How calls are bound, stored and given back to the function."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import pytest

from millpond.codec import Signature
from millpond.errors import BadConfig, BadPayload

if TYPE_CHECKING:
    from collections.abc import Callable

    from nowhere import Missing  # type: ignore[import-not-found]


class Context:
    """Stands for what a worker hands to a task."""


class Session:
    """Something that lives in one process only."""


def report(report_id: int, fmt: str = "pdf", *, ctx: Context) -> dict[str, float]:
    return {}


def test_a_payload_is_one_object_keyed_by_parameter_name_in_their_order() -> None:
    signature = Signature.of(report)
    assert signature.encode((812,), {"fmt": "é"}) == '{"report_id":812,"fmt":"é"}'.encode()
    assert signature.encode((), {"fmt": "é", "report_id": 812}) == signature.encode((812, "é"))


def test_a_default_is_not_stored_unless_it_was_given() -> None:
    signature = Signature.of(report)
    assert signature.encode((812,)) == b'{"report_id":812}'
    assert signature.encode((812, "pdf")) == b'{"report_id":812,"fmt":"pdf"}'
    assert signature.decode(b'{"report_id":812}') == ((812,), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"report\(\): missing a required argument: 'report_id'; it takes report_id, fmt="),
        ((1, "a", 2), {}, r"report\(\): too many positional arguments"),
        ((1,), {"report_id": 2}, r"report\(\): multiple values for argument 'report_id'"),
        ((1,), {"colour": 2}, r"report\(\): got an unexpected keyword argument 'colour'"),
        ((1,), {"ctx": 2}, r"report\(\): got an unexpected keyword argument 'ctx'"),
    ],
)
def test_a_call_that_python_would_refuse_is_refused_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadPayload, match=message):
        Signature.of(report).encode(args, kwargs)


def test_the_name_of_the_task_stands_in_messages() -> None:
    with pytest.raises(BadPayload, match=r"^reports\.monthly\(args\.report_id\): expected int"):
        Signature.of(report, task="reports.monthly").encode(("x",))


def test_variadic_values_are_stored_under_the_names_of_their_parameters() -> None:
    def f(a: int, *rest: int, **more: str) -> None: ...

    signature = Signature.of(f)
    payload = signature.encode((1, 2, 3), {"x": "y"})
    assert payload == b'{"a":1,"rest":[2,3],"more":{"x":"y"}}'
    assert signature.decode(payload) == ((1, 2, 3), {"x": "y"})
    with pytest.raises(BadPayload, match=r"f\(args\.rest\[1\]\): expected int, got str"):
        signature.encode((1, 2, "x"))
    with pytest.raises(BadPayload, match=r"f\(args\.more\.x\): expected str, got int"):
        signature.encode((1,), {"x": 1})


def test_unpacked_keywords_are_checked_one_by_one() -> None:
    class Options(TypedDict, total=False):
        when: dt.date
        size: int

    def f(**options: Unpack[Options]) -> None: ...

    signature = Signature.of(f)
    given = {"when": dt.date(2024, 5, 31)}
    assert signature.decode(signature.encode((), given)) == ((), given)
    with pytest.raises(BadPayload, match=r"f\(args\.options\.size\): expected int, got str"):
        signature.encode((), {"size": "x"})


def test_what_can_only_be_passed_by_position_is_given_back_by_position() -> None:
    def f(a: int = 1, b: int = 2, c: int = 3, /, d: int = 4, *rest: int) -> object:
        return a, b, c, d, rest

    signature = Signature.of(f)
    for payload, outcome in [
        (b'{"c":9}', (1, 2, 9, 4, ())),
        (b'{"d":9}', (1, 2, 3, 9, ())),
        (b'{"a":9,"d":8}', (9, 2, 3, 8, ())),
        (b'{"rest":[9]}', (1, 2, 3, 4, (9,))),
        (b"{}", (1, 2, 3, 4, ())),
    ]:
        args, kwargs = signature.decode(payload)
        assert f(*args, **kwargs) == outcome
    assert signature.encode_named({"c": 9}) == b'{"c":9}'


def test_what_comes_after_a_default_is_given_back_by_keyword() -> None:
    def f(a: int, b: int = 2, c: int = 3) -> None: ...

    assert Signature.of(f).decode(b'{"a":1,"c":9}') == ((1,), {"c": 9})


def test_extra_keywords_of_a_stored_payload_cannot_take_the_place_of_a_parameter() -> None:
    def f(a: int, *, ctx: Context, **more: int) -> None: ...

    signature = Signature.of(f, context_type=Context)
    for name in ("a", "ctx"):
        with pytest.raises(
            BadPayload, match=rf"f\(args\.more\.{name}\): is a parameter of its own"
        ):
            signature.check(b'{"a":1,"more":{"%s":2}}' % name.encode())


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b'{"fmt":"pdf"}', r"report\(args\.report_id\): is missing; the stored JSON does not fit"),
        (b'{"report_id":1,"old":2}', r"report\(args\.old\): is unknown"),
        (b'{"report_id":"1"}', r"report\(args\.report_id\): expected int, got str"),
        (b"[]", r"report\(args\): expected object, got array"),
        (b'{"report_id":1', r"report\(args\): is not valid JSON"),
        (b"", r"report\(args\): is not valid JSON"),
        (b"[" * 100_000, r"report\(args\): "),
        (b'{"fmt":' + b"[" * 100_000, r"report\(args.*\): "),
    ],
)
def test_a_stored_payload_that_does_not_fit_the_code_is_refused_with_its_path(
    payload: bytes, message: str
) -> None:
    with pytest.raises(BadPayload, match=message):
        Signature.of(report).decode(payload)


def test_values_by_name_are_checked_like_a_call() -> None:
    signature = Signature.of(report)
    assert signature.encode_named({"report_id": 1}) == b'{"report_id":1}'
    with pytest.raises(BadPayload, match=r"report\(args\.colour\): report has no such parameter"):
        signature.encode_named({"report_id": 1, "colour": "red"})
    with pytest.raises(BadPayload, match=r"report\(args\.report_id\): is missing"):
        signature.encode_named({"fmt": "pdf"})


@pytest.mark.parametrize("hint", ["Context", "'Context'", "Context | None", "app.Context", Context])
def test_the_context_is_no_part_of_the_payload(hint: Any) -> None:
    def f(a: int, *, tools: Any = None) -> None: ...

    f.__annotations__["tools"] = hint
    signature = Signature.of(f, context_type=Context)
    assert signature.context == "tools"
    assert [p.name for p in signature.parameters] == ["a"]


def test_a_keyword_named_ctx_is_the_context_without_an_annotation() -> None:
    def f(*, ctx) -> None: ...  # type: ignore[no-untyped-def]

    assert Signature.of(f).context == "ctx"
    assert Signature.of(f).encode() == b"{}"


def test_a_context_that_could_be_passed_by_position_is_refused() -> None:
    def f(tools: Context) -> None: ...

    with pytest.raises(BadConfig, match=r"f: parameter 'tools' takes the Context.*put a star"):
        Signature.of(f, context_type=Context)


def test_a_type_that_cannot_be_resolved_is_refused_with_function_and_parameter() -> None:
    def f(a: int, b: list[Missing]) -> None: ...

    def g() -> Missing: ...

    with pytest.raises(BadConfig, match=r"f: the annotation of parameter 'b', 'list\[Missing\]'"):
        Signature.of(f)
    with pytest.raises(BadConfig, match=r"g: the return annotation, 'Missing', cannot be resolved"):
        Signature.of(g)


def test_a_field_type_that_cannot_be_resolved_is_refused_with_function_and_parameter() -> None:
    @dataclasses.dataclass
    class Holder:
        what: Missing

    def f(holder: Holder) -> None: ...

    with pytest.raises(BadConfig, match=r"f: parameter 'holder'.*Missing"):
        Signature.of(f)


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (dt.datetime | str, "parameter 'v' has an annotation that JSON cannot carry"),
        (Session, "parameter 'v' takes Session, which has no JSON form"),
        (list[Session], "parameter 'v' takes Session, which has no JSON form"),
        (3, "parameter 'v' has an annotation that JSON cannot carry"),
        ("list[", "the annotation of parameter 'v', 'list\\[', cannot be resolved"),
    ],
)
def test_a_type_that_json_cannot_carry_is_refused_when_the_task_is_defined(
    hint: Any, message: str
) -> None:
    def f(v: Any) -> None: ...

    f.__annotations__["v"] = hint
    with pytest.raises(BadConfig, match=message):
        Signature.of(f)


def test_a_parameter_may_have_any_name_but_a_private_one() -> None:
    def f(self, args, kwargs, name=1, *, dict=2, weakref=3, kw_only=4, _x=5) -> None: ...  # type: ignore[no-untyped-def]

    def g(*, __x: int) -> None: ...

    signature = Signature.of(f)
    payload = signature.encode((1, 2, 3, 4), {"kw_only": 6, "_x": 7})
    assert signature.decode(payload) == ((1, 2, 3, 4), {"kw_only": 6, "_x": 7})
    with pytest.raises(BadConfig, match=r"g: parameter '__x' begins with two underscores"):
        Signature.of(g)


def test_a_default_may_stand_for_what_no_payload_holds() -> None:
    def f(a: int, session: Session | None = None) -> None: ...

    def g(a: int, session: Session = Session()) -> None: ...  # noqa: B008

    for fn in (f, g):
        signature = Signature.of(fn)
        assert signature.decode(signature.encode((1,))) == ((1,), {})
        with pytest.raises(BadPayload, match=r"\(args\.session\): Session has no JSON form"):
            signature.encode((1, Session()))


def test_types_defined_inside_a_function_are_found() -> None:
    @dataclasses.dataclass
    class Local:
        size: int

    def f(local: Local) -> list[Local]:
        return [local]

    signature = Signature.of(f)
    assert signature.decode(signature.encode((Local(1),))) == ((Local(1),), {})
    assert signature.decode_result(signature.encode_result([Local(1)])) == [Local(1)]


def test_types_that_only_the_closure_knows_are_found() -> None:
    def make() -> Callable[..., Any]:
        @dataclasses.dataclass
        class Local:
            size: int

        def f(local: Local) -> Any:
            return Local

        return f

    f = make()
    assert Signature.of(f).parameters[0].hint is f(None)


def test_a_default_of_none_allows_none() -> None:
    def f(a: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    assert Signature.of(f).encode((None,)) == b'{"a":null}'


def test_an_iterable_is_stored_as_a_list() -> None:
    def f(ids: Iterable[int]) -> None: ...

    signature = Signature.of(f)
    assert signature.decode(signature.encode(([1, 2],))) == (([1, 2],), {})
    with pytest.raises(BadPayload, match=r"f\(args\.ids\): range has no JSON form"):
        signature.encode((range(2),))


def test_methods_partials_wrappers_and_callables_are_read_like_functions() -> None:
    class Mailer:
        def send(self, to: str) -> None: ...

        def __call__(self, to: str) -> None: ...

    @functools.wraps(report)
    def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    for fn in (Mailer().send, Mailer(), functools.partial(report, 1, ctx=Context())):
        with pytest.raises(BadPayload, match="expected str, got int"):
            Signature.of(fn).encode(
                (), {"fmt": 1} if isinstance(fn, functools.partial) else {"to": 1}
            )
    assert [p.name for p in Signature.of(wrapper).parameters] == ["report_id", "fmt"]


def test_a_signature_knows_the_declared_result() -> None:
    signature = Signature.of(report)
    assert signature.result == dict[str, float]
    assert signature.decode_result(signature.encode_result({"a": 1})) == {"a": 1}
    with pytest.raises(BadPayload, match=r"report\(result\.a\): expected int \| float, got str"):
        signature.encode_result({"a": "x"})


def test_the_schema_tells_types_required_names_and_defaults() -> None:
    def f(a: int, when: dt.date = dt.date(2024, 5, 31), *more: str) -> None: ...

    schema = Signature.of(f).schema()
    assert schema["title"] == "f"
    assert schema["required"] == ["a"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["a"] == {"type": "integer"}
    assert schema["properties"]["when"]["default"] == "2024-05-31"
    assert schema["properties"]["more"] == {"type": "array", "items": {"type": "string"}}


def test_the_schema_of_a_type_that_has_none_is_the_names() -> None:
    def f(a: int, session: Session | None = None) -> None: ...

    schema = Signature.of(f).schema()
    assert schema["properties"] == {"a": {}, "session": {"default": None}}


def test_more_kinds_of_calls_than_are_remembered_are_stored_just_as_well() -> None:
    def f(**more: Any) -> None: ...

    def g(a: Any = None, b: Any = None, c: Any = None, d: Any = None, e: Any = None) -> None: ...

    signature = Signature.of(g)
    values = [None, True, 1, 1.5, "x"]
    for n in range(5**5):
        args = tuple(values[n // 5**at % 5] for at in range(5))
        assert signature.decode(signature.encode(args)) == (args, {})


def test_a_signature_may_be_used_by_many_threads() -> None:
    signature = Signature.of(report)
    wrong: list[object] = []

    def work(seed: int) -> None:
        for n in range(500):
            args = (seed * n, str(n)) if n % 2 else (seed * n,)
            if signature.decode(signature.encode(args)) != (args, {}):
                wrong.append(args)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not wrong
