"""Turns the arguments and results of tasks into strict JSON that comes back exactly.

What would come back as something else, or not at all, is refused with its path before
anything is stored. Nothing is ever pickled.

In the payload a call is one object keyed by parameter name; the values of `*args` are a list
under their name, those of `**kwargs` an object under theirs. Integers of any size (up to the
4,300 digits that Python converts) are exact; an aware datetime keeps moment and offset, but
its zone's name is not stored; NaN and infinities are refused.
"""

from millpond.codec.coder import MAX_BYTES
from millpond.codec.hints import Parameter
from millpond.codec.place import PayloadTooLarge
from millpond.codec.plain import decode_result, encode_json, encode_result, parse_json
from millpond.codec.signature import Signature
from millpond.codec.walk import MAX_DEPTH

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "Parameter",
    "PayloadTooLarge",
    "Signature",
    "decode_result",
    "encode_json",
    "encode_result",
    "parse_json",
]
