"""The compiled kernel for JSON: objects to the buffers of Arrow's columns, in one pass over their bytes.

It takes what is plain, and refuses a row as soon as anything is unusual: a field that occurs twice, a number with a
fraction where an integer is due, a name with an escape, an object that ends too early. `json_values` then decodes the
row the careful way, which alone knows reasons. So there is one rule: what is taken here is what the careful way makes
of it. A property test holds the two against each other.

No input is trusted: every index is compared with the end of its row before it is read. All integers are signed 64-bit:
numba turns a mix of signed and unsigned into floats.

All is in one file, because numba's cache checks only the file of the compiled function.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.arrow.decode.jit import (
    BYTES,
    ENDS,
    INT,
    INT64S,
    MARKS,
    OFFSETS,
    SOURCE,
    TABLE,
    copy_memory,
    kernel,
    load_byte,
    load_int,
    lowest_bit,
    part,
    special_bytes,
    store_byte,
    store_double,
    store_int,
)

# Columns of the table of fields. Row 0 is the object itself; the fields of an object are neighbours.
KIND, NAME_AT, NAME_SIZE, FIRST, COUNT, IS_NULLABLE, REQUIRED, TEXT, LOW, HIGH = range(10)
FIELD_COLUMNS = 10
OBJECT, INTEGER, DOUBLE, FLOAT, STRING, BOOLEAN, TIMESTAMP, DATE, SPAN, TIMESTAMP_TEXT = range(10)
"""SPAN: its place is noted, and somebody else decodes it. TIMESTAMP_TEXT: no milliseconds."""
ABSENT, PRESENT, UNREAD = range(3)
"""What is known of a field in a row. UNREAD: `numbers` has the place of its text, as start << 32 | size."""

MAX_DEPTH = 32

int64: Any = np.int64  # so that mypy takes the compiled int for an int

_POWERS = 10.0 ** np.arange(23)  # exact, as are integers below 2^53: a product or quotient of both is rounded once
_EXACT = 2**53
_TENTH = (2**63 - 1) // 10
_MAX_FLOAT = float(np.finfo(np.float32).max)
_DAYS = np.array([31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _PLUS, _POINT = 0x22, 0x5C, 0x2C, 0x3A, 0x2D, 0x2B, 0x2E
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 0x7B, 0x7D, 0x5B, 0x5D
_ZERO, _NINE, _T, _Z = 0x30, 0x39, 0x54, 0x5A


@part
def _after_blanks(at: int, end: int) -> int:
    while at < end:
        byte = load_byte(at)
        if byte > 0x20 or byte not in (0x20, 0x0A, 0x0D, 0x09):
            break
        at += 1
    return at


@part
def _next_special(at: int, end: int) -> int:
    """The first byte from `at` on that ends a plain run, or `end`."""
    while at + 32 <= end:
        found = special_bytes(at)
        if found != 0:
            return at + lowest_bit(found)  # type: ignore[no-any-return]
        at += 32
    while at < end:
        byte = load_byte(at)
        if byte in (_QUOTE, _BACKSLASH) or byte < 0x20 or byte >= 0x80:
            return at
        at += 1
    return at


@part
def _is_tail(at: int) -> bool:
    return (load_byte(at) & 0xC0) == 0x80  # type: ignore[no-any-return]


@part
def _after_character(at: int, end: int) -> int:
    """The position after a character in UTF-8 of more than one byte; -1 if it is none."""
    first = load_byte(at)
    if 0xC2 <= first <= 0xDF:
        return at + 2 if at + 2 <= end and _is_tail(at + 1) else -1
    if at + 3 > end or not _is_tail(at + 1) or not _is_tail(at + 2):
        return -1
    second = load_byte(at + 1)
    if 0xE0 <= first <= 0xEF:
        if (first == 0xE0 and second < 0xA0) or (first == 0xED and second >= 0xA0):  # overlong; a surrogate
            return -1
        return at + 3
    if 0xF0 <= first <= 0xF4 and at + 4 <= end and _is_tail(at + 3):
        if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second >= 0x90):  # overlong; beyond the last one
            return -1
        return at + 4
    return -1


@part
def _hex(at: int) -> int:
    """Four hexadecimal digits; -1 if they are none."""
    value = int64(0)
    for i in range(4):
        byte = load_byte(at + i)
        if _ZERO <= byte <= _NINE:
            digit = byte - _ZERO
        elif 0x41 <= byte <= 0x46:
            digit = byte - 0x37
        elif 0x61 <= byte <= 0x66:
            digit = byte - 0x57
        else:
            return -1
        value = value << 4 | digit
    return value  # type: ignore[no-any-return]


@part
def _escape(at: int, end: int) -> tuple[int, int]:
    """The character that is escaped at the backslash, and the position after it (-1: none)."""
    if at + 2 > end:
        return int64(0), int64(-1)
    byte = load_byte(at + 1)
    if byte in (_QUOTE, _BACKSLASH, 0x2F):
        return byte, at + 2
    if byte == 0x6E:
        return int64(0x0A), at + 2
    if byte == 0x74:
        return int64(0x09), at + 2
    if byte == 0x72:
        return int64(0x0D), at + 2
    if byte == 0x62:
        return int64(0x08), at + 2
    if byte == 0x66:
        return int64(0x0C), at + 2
    if byte != 0x75 or at + 6 > end:
        return int64(0), int64(-1)
    code = _hex(at + 2)
    if code < 0 or 0xDC00 <= code <= 0xDFFF:
        return int64(0), int64(-1)
    if code < 0xD800 or code > 0xDFFF:
        return code, at + 6
    if at + 12 > end or load_byte(at + 6) != _BACKSLASH or load_byte(at + 7) != 0x75:
        return int64(0), int64(-1)
    low = _hex(at + 8)
    if low < 0xDC00 or low > 0xDFFF:
        return int64(0), int64(-1)
    return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), at + 12


@part
def _put(to: int, code: int) -> int:
    """Writes a character in UTF-8. Returns the position after it."""
    if code < 0x80:
        store_byte(to, code)
        return to + 1
    if code < 0x800:
        store_byte(to, 0xC0 | code >> 6)
        store_byte(to + 1, 0x80 | (code & 0x3F))
        return to + 2
    if code < 0x10000:
        store_byte(to, 0xE0 | code >> 12)
        store_byte(to + 1, 0x80 | (code >> 6 & 0x3F))
        store_byte(to + 2, 0x80 | (code & 0x3F))
        return to + 3
    store_byte(to, 0xF0 | code >> 18)
    store_byte(to + 1, 0x80 | (code >> 12 & 0x3F))
    store_byte(to + 2, 0x80 | (code >> 6 & 0x3F))
    store_byte(to + 3, 0x80 | (code & 0x3F))
    return to + 4


@part
def _string(at: int, end: int, to: int) -> tuple[int, int]:
    """The position after the string that begins after a quote (-1: it is none), and after its copy at `to`.

    `to` -1: no copy. A copy is never longer than what is read.
    """
    begin = at
    while True:
        at = _next_special(at, end)
        if at >= end:
            return int64(-1), to
        byte = load_byte(at)
        if byte >= 0x80:
            at = _after_character(at, end)
            if at < 0:
                return int64(-1), to
            while at < end and load_byte(at) >= 0x80:
                at = _after_character(at, end)
                if at < 0:
                    return int64(-1), to
            continue
        if byte < 0x20:
            return int64(-1), to
        if to >= 0:
            copy_memory(to, begin, at - begin)
            to += at - begin
        if byte == _QUOTE:
            return at + 1, to
        code, at = _escape(at, end)
        if at < 0:
            return int64(-1), to
        if to >= 0:
            to = _put(to, code)
        begin = at


@part
def _integer(at: int, end: int) -> tuple[int, int]:
    """An integer of 64 bits and the position after it; -1 if it is anything else."""
    is_negative = at < end and load_byte(at) == _MINUS
    if is_negative:
        at += 1
    begin = at
    value = int64(0)
    while at < end and _ZERO <= load_byte(at) <= _NINE:
        digit = load_byte(at) - _ZERO
        if value > _TENTH or (value == _TENTH and digit > 7):
            return int64(0), int64(-1)
        value = value * 10 + digit
        at += 1
    if at == begin or (load_byte(begin) == _ZERO and (at - begin > 1 or is_negative)):
        return int64(0), int64(-1)
    if at < end and (load_byte(at) == _POINT or load_byte(at) == 0x65 or load_byte(at) == 0x45):
        return int64(0), int64(-1)
    return (-value if is_negative else value), at


@part
def _number(at: int, end: int) -> tuple[float, bool, int]:
    """A number, whether it is exact, and the position after it (-1: it is none)."""
    is_negative = at < end and load_byte(at) == _MINUS
    if is_negative:
        at += 1
    begin = at
    value = int64(0)
    power = int64(0)
    is_exact = True
    while at < end and _ZERO <= load_byte(at) <= _NINE:
        if value < _EXACT:
            value = value * 10 + (load_byte(at) - _ZERO)
        else:
            is_exact = False
        at += 1
    if at == begin or (load_byte(begin) == _ZERO and at - begin > 1):
        return 0.0, False, int64(-1)
    if at < end and load_byte(at) == _POINT:
        at += 1
        point = at
        while at < end and _ZERO <= load_byte(at) <= _NINE:
            if value < _EXACT:
                value = value * 10 + (load_byte(at) - _ZERO)
                power -= 1
            else:
                is_exact = False
            at += 1
        if at == point:
            return 0.0, False, int64(-1)
    if at < end and (load_byte(at) == 0x65 or load_byte(at) == 0x45):
        at += 1
        is_small = at < end and load_byte(at) == _MINUS
        if is_small or (at < end and load_byte(at) == _PLUS):
            at += 1
        begin = at
        exponent = int64(0)
        while at < end and _ZERO <= load_byte(at) <= _NINE:
            exponent = min(exponent * 10 + (load_byte(at) - _ZERO), 100_000)
            at += 1
        if at == begin:
            return 0.0, False, int64(-1)
        power += -exponent if is_small else exponent
    if value == 0 and is_negative:
        return 0.0, False, at
    if not is_exact or value > _EXACT or power < -22 or power > 22:
        return 0.0, False, at
    found = value * 1.0
    if power < 0:
        found = found / _POWERS[-power]
    else:
        found = found * _POWERS[power]
    return (-found if is_negative else found), True, at


@part
def _is_word(at: int, end: int, second: int, third: int, fourth: int) -> bool:
    """Whether these follow the character at `at`."""
    if at + 4 > end:
        return False
    is_second, is_third = load_byte(at + 1) == second, load_byte(at + 2) == third
    return is_second and is_third and load_byte(at + 3) == fourth  # type: ignore[no-any-return]


@part
def _after_word(at: int, end: int) -> int:
    """The position after null, true or false; -1 if it is none of them."""
    byte = load_byte(at)
    if byte == 0x6E:
        return at + 4 if _is_word(at, end, 0x75, 0x6C, 0x6C) else -1
    if byte == 0x74:
        return at + 4 if _is_word(at, end, 0x72, 0x75, 0x65) else -1
    if byte == 0x66 and at + 5 <= end and load_byte(at + 1) == 0x61:
        return at + 5 if _is_word(at + 1, end, 0x6C, 0x73, 0x65) else -1
    return -1


@part
def _scalar(at: int, end: int) -> int:
    """The position after a string, number or word; -1 if it is none."""
    byte = load_byte(at)
    if byte == _QUOTE:
        after, _ = _string(at + 1, end, int64(-1))
        return after
    if byte >= 0x61:
        return _after_word(at, end)
    _, _, after = _number(at, end)
    return after


@part
def _after_value(at: int, end: int) -> int:
    """The position after any value; -1 if it is none, or too deep."""
    objects = int64(0)  # a bit for each level, the innermost lowest: whether it is an object
    depth = int64(0)
    while True:
        at = _after_blanks(at, end)
        if at >= end:
            return -1
        byte = load_byte(at)
        if byte in (_OPEN, _OPEN_LIST):
            if depth == MAX_DEPTH:
                return -1
            depth += 1
            objects = objects << 1 | (1 if byte == _OPEN else 0)
            at = _after_blanks(at + 1, end)
            if at >= end:
                return -1
            if load_byte(at) == (_CLOSE if byte == _OPEN else _CLOSE_LIST):
                at += 1
                depth -= 1
                objects >>= 1
            else:
                if byte == _OPEN:
                    at = _after_name(at, end)
                    if at < 0:
                        return -1
                continue
        else:
            at = _scalar(at, end)
            if at < 0:
                return -1
        # After a value: the ends of those around it, or a comma.
        while depth > 0:
            at = _after_blanks(at, end)
            if at >= end:
                return -1
            byte = load_byte(at)
            is_object = objects & 1
            if byte == _COMMA:
                at += 1
                if is_object:
                    at = _after_name(_after_blanks(at, end), end)
                    if at < 0:
                        return -1
                break
            if byte != (_CLOSE if is_object else _CLOSE_LIST):
                return -1
            at += 1
            depth -= 1
            objects >>= 1
        else:
            return at


@part
def _after_name(at: int, end: int) -> int:
    """The position after a name and its colon; -1 if there is none."""
    if at >= end or load_byte(at) != _QUOTE:
        return -1
    at, _ = _string(at + 1, end, int64(-1))
    if at < 0:
        return -1
    at = _after_blanks(at, end)
    return at + 1 if at < end and load_byte(at) == _COLON else -1


@part
def _digits(at: int, count: int) -> int:
    """So many digits; a large negative number if they are none."""
    value = int64(0)
    for i in range(count):
        byte = load_byte(at + i)
        if byte < _ZERO or byte > _NINE:
            return -1_000_000
        value = value * 10 + (byte - _ZERO)
    return value  # type: ignore[no-any-return]


@part
def _date(at: int) -> tuple[int, bool]:
    """The days since 1970 of the ten characters YYYY-MM-DD, and whether they are a date."""
    if load_byte(at + 4) != _MINUS or load_byte(at + 7) != _MINUS:
        return int64(0), False
    year, month, day = _digits(at, 4), _digits(at + 5, 2), _digits(at + 8, 2)
    if year < 1 or month < 1 or month > 12 or day < 1 or day > _DAYS[month - 1]:
        return int64(0), False
    if month == 2 and day == 29 and (year % 4 != 0 or (year % 100 == 0 and year % 400 != 0)):
        return int64(0), False
    if month <= 2:  # years from March on, so that the leap day is their last
        year -= 1
        month += 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 1
    return days - 719468, True


@part
def _timestamp(at: int, end: int) -> tuple[int, int]:
    """Microseconds of YYYY-MM-DDTHH:MM:SS[.ffffff](Z|+HH:MM) after a quote, and the position after its quote (-1)."""
    if at + 21 > end:
        return int64(0), int64(-1)
    days, is_date = _date(at)
    hour, minute, second = _digits(at + 11, 2), _digits(at + 14, 2), _digits(at + 17, 2)
    is_time = 0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60
    if (
        not is_date
        or not is_time
        or load_byte(at + 10) != _T
        or load_byte(at + 13) != _COLON
        or load_byte(at + 16) != _COLON
    ):
        return int64(0), int64(-1)
    if days < -719162 + 366 or days > 2932896 - 366:  # the first and last year may leave the range with a zone
        return int64(0), int64(-1)
    seconds = days * 86_400 + hour * 3600 + minute * 60 + second
    at += 19
    micros = int64(0)
    if load_byte(at) == _POINT:
        at += 1
        size = int64(0)
        while at < end and _ZERO <= load_byte(at) <= _NINE and size < 7:
            micros = micros * 10 + (load_byte(at) - _ZERO)
            at += 1
            size += 1
        if size < 1 or size > 6 or at >= end:
            return int64(0), int64(-1)
        for _ in range(6 - size):
            micros *= 10
    if load_byte(at) == _Z:
        at += 1
    else:
        if at + 6 > end or (load_byte(at) != _PLUS and load_byte(at) != _MINUS) or load_byte(at + 3) != _COLON:
            return int64(0), int64(-1)
        hour, minute = _digits(at + 1, 2), _digits(at + 4, 2)
        if hour < 0 or hour > 23 or minute < 0 or minute > 59:
            return int64(0), int64(-1)
        offset = hour * 3600 + minute * 60
        seconds += offset if load_byte(at) == _MINUS else -offset
        at += 6
    if at >= end or load_byte(at) != _QUOTE:
        return int64(0), int64(-1)
    return seconds * 1_000_000 + micros, at + 1


@part
def _entry(fields: int, field: int, column: int) -> int:
    return load_int(fields + ((field * FIELD_COLUMNS + column) << 3))  # type: ignore[no-any-return]


@part
def _is_name(at: int, size: int, names: int, fields: int, field: int) -> bool:
    if _entry(fields, field, NAME_SIZE) != size:
        return False
    name = names + _entry(fields, field, NAME_AT)
    for i in range(size):  # noqa: SIM110 (numba has no generators here)
        if load_byte(at + i) != load_byte(name + i):
            return False
    return True


@part
def _name_end(at: int, end: int) -> int:
    """The position of the quote after a name without escapes; -1 if it has any, or does not end."""
    while True:
        at = _next_special(at, end)
        if at >= end:
            return -1
        if load_byte(at) == _QUOTE:
            return at
        if load_byte(at) < 0x80:
            return -1
        at = _after_character(at, end)
        if at < 0:
            return -1


@part
def _row(
    at: int,
    end: int,
    data: int,
    fields: int,
    names: int,
    seen: int,
    stack: int,
    numbers: int,
    marks: int,
    filled: int,
    rows: int,
    row: int,
) -> bool:
    """Decodes an object into row `row`. False: it is refused, and what was written of it does not count."""
    at = _after_blanks(at, end)
    if at >= end or load_byte(at) != _OPEN:
        return False
    at += 1
    depth = int64(0)
    within = int64(0)
    guess = _entry(fields, 0, FIRST)  # fields mostly come in the order of the schema
    required = _entry(fields, 0, REQUIRED)
    is_first = True
    while True:
        at = _after_blanks(at, end)
        if at >= end:
            return False
        if load_byte(at) == _CLOSE:
            if required != 0:
                return False
            at += 1
            if depth == 0:
                return _after_blanks(at, end) == end
            depth -= 1
            within = load_int(stack + depth * 24)
            guess = load_int(stack + depth * 24 + 8)
            required = load_int(stack + depth * 24 + 16)
            is_first = False
            continue
        if not is_first:
            if load_byte(at) != _COMMA:
                return False
            at = _after_blanks(at + 1, end)
        is_first = False
        if at >= end or load_byte(at) != _QUOTE:
            return False
        at += 1
        first = _entry(fields, within, FIRST)
        after = first + _entry(fields, within, COUNT)
        field = int64(-1)
        if guess < after:
            name_end = at + _entry(fields, guess, NAME_SIZE)
            if name_end < end and load_byte(name_end) == _QUOTE and _is_name(at, name_end - at, names, fields, guess):
                field = guess
                at = name_end + 1
        if field < 0:
            name_end = _name_end(at, end)
            if name_end < 0:
                return False
            for other in range(first, after):
                if _is_name(at, name_end - at, names, fields, other):
                    field = int64(other)
                    break
            at = name_end + 1
        at = _after_blanks(at, end)
        if at >= end or load_byte(at) != _COLON:
            return False
        at = _after_blanks(at + 1, end)
        if at >= end:
            return False
        if field < 0:
            at = _after_value(at, end)
            if at < 0:
                return False
            continue
        guess = field + 1
        if load_int(seen + field * 8) == row:
            return False
        store_int(seen + field * 8, row)
        if load_byte(at) == 0x6E:
            at = _after_word(at, end)
            if at < 0 or _entry(fields, field, IS_NULLABLE) == 0:
                return False
            continue
        if _entry(fields, field, IS_NULLABLE) == 0:
            required -= 1
        cell = field * rows + row
        store_byte(marks + cell, PRESENT)
        kind = _entry(fields, field, KIND)
        if kind == STRING:
            if load_byte(at) != _QUOTE:
                return False
            slot = filled + _entry(fields, field, TEXT) * 8
            at, to = _string(at + 1, end, load_int(slot))
            if at < 0:
                return False
            store_int(slot, to)
        elif kind == INTEGER:
            value, at = _integer(at, end)
            if at < 0 or value < _entry(fields, field, LOW) or value > _entry(fields, field, HIGH):
                return False
            store_int(numbers + cell * 8, value)
        elif kind in (DOUBLE, FLOAT):
            begin = at
            found, is_exact, at = _number(at, end)
            if at < 0 or (kind == FLOAT and abs(found) > _MAX_FLOAT):
                return False
            if is_exact:
                store_double(numbers + cell * 8, found)
            else:
                store_int(numbers + cell * 8, (begin - data) << 32 | (at - begin))
                store_byte(marks + cell, UNREAD)
        elif kind == OBJECT:
            if load_byte(at) != _OPEN:
                return False
            at += 1
            store_int(stack + depth * 24, within)
            store_int(stack + depth * 24 + 8, guess)
            store_int(stack + depth * 24 + 16, required)
            depth += 1
            within = field
            guess = _entry(fields, field, FIRST)
            required = _entry(fields, field, REQUIRED)
            is_first = True
        elif kind == BOOLEAN:
            is_true = load_byte(at) == 0x74
            at = _after_word(at, end)
            if at < 0:
                return False
            store_int(numbers + cell * 8, 1 if is_true else 0)
        elif kind in (TIMESTAMP, TIMESTAMP_TEXT):
            if load_byte(at) == _QUOTE:
                value, at = _timestamp(at + 1, end)
                if at < 0:
                    return False
                store_int(numbers + cell * 8, value)
            else:
                if kind == TIMESTAMP_TEXT:
                    return False
                value, at = _integer(at, end)
                if at < 0 or value < _entry(fields, field, LOW) or value > _entry(fields, field, HIGH):
                    return False
                store_int(numbers + cell * 8, value * 1000)
        elif kind == DATE:
            if load_byte(at) != _QUOTE or at + 12 > end or load_byte(at + 11) != _QUOTE:
                return False
            days, is_date = _date(at + 1)
            if not is_date:
                return False
            store_int(numbers + cell * 8, days)
            at += 12
        else:
            begin = at
            at = _after_value(at, end)
            if at < 0:
                return False
            store_int(numbers + cell * 8, (begin - data) << 32 | (at - begin))
            store_byte(marks + cell, UNREAD)


@kernel(INT, SOURCE, OFFSETS, INT, TABLE, SOURCE, INT64S, TABLE, TABLE, MARKS, BYTES, INT, ENDS, BYTES)
def parse(
    data: Any,
    offsets: Any,
    rows: int,
    fields: Any,
    names: Any,
    seen: Any,
    stack: Any,
    numbers: Any,
    marks: Any,
    text: Any,
    capacity: int,
    ends: Any,
    refused: Any,
) -> int:
    """Decodes the values between `offsets` of `data`. Returns how many rows it refused, which `refused` marks.

    By field and row: `numbers` has what is of fixed size (doubles as their bits), `marks` what is present. By string
    field: `ends` are Arrow's offsets, within its `capacity` bytes of `text`. A refused row is absent in all.
    """
    strings = len(ends)
    filled = np.empty(max(strings, 1), np.int64)
    begins = np.empty(max(strings, 1), np.int64)
    for slot in range(strings):
        begins[slot] = text.ctypes.data + slot * capacity
        filled[slot] = begins[slot]
        ends[slot, 0] = 0
    for field in range(len(seen)):
        seen[field] = -1
    count: int = int64(0)
    for row in range(rows):
        is_taken = _row(
            data.ctypes.data + offsets[row],
            data.ctypes.data + offsets[row + 1],
            data.ctypes.data,
            fields.ctypes.data,
            names.ctypes.data,
            seen.ctypes.data,
            stack.ctypes.data,
            numbers.ctypes.data,
            marks.ctypes.data,
            filled.ctypes.data,
            rows,
            row,
        )
        if not is_taken:
            refused[row] = 1
            count += 1
            for field in range(len(seen)):
                marks[field, row] = ABSENT
            for slot in range(strings):
                filled[slot] = begins[slot] + ends[slot, row]
        for slot in range(strings):
            ends[slot, row + 1] = filled[slot] - begins[slot]
    return count
