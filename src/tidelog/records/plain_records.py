"""Looking at the records of a batch without making an object of each.

A compacted topic has every record looked at: whether it has a key, and what its timestamp is. `timestamps_of`
does that for records as clients usually write them: no headers, fewer than 8,192 of them, each field shorter
than 8,192 bytes, timestamps within eight seconds. It says None of all others, and of those that are damaged
or lack a key: `record.parse_records` then reads them one by one, and knows what is wrong.

Every number of a record is a varint. Those of one byte and of two are read in place: a call for each would
take most of the time.
"""

from tidelog.model.log_config import INT64_MAX

#: the varint of -1
NULL = 1


def timestamps_of(
    data: bytes | memoryview, records_count: int, *, keys_needed: bool
) -> tuple[int, int] | None:
    """The least and the largest timestamp in `data`, as differences to the base timestamp of the batch; None
    where the records have to be read one by one.
    """
    data = bytes(data)
    position = 0
    least, largest = INT64_MAX, -INT64_MAX
    try:
        for offset_delta in range(records_count):
            size, position = data[position], position + 1
            if size >= 0x80:
                size, position = size & 0x7F | data[position] << 7, position + 1
            end = position + (size >> 1)
            timestamp, position = data[position + 1], position + 2  # behind the attributes
            if timestamp >= 0x80:
                timestamp, position = timestamp & 0x7F | data[position] << 7, position + 1
            number, position = data[position], position + 1
            if number >= 0x80:
                number, position = number & 0x7F | data[position] << 7, position + 1
            key_size, position = data[position], position + 1
            if key_size >= 0x80:
                key_size, position = key_size & 0x7F | data[position] << 7, position + 1
            if not key_size & 1:
                position += key_size >> 1
            elif key_size != NULL or keys_needed:
                return None
            value_size, position = data[position], position + 1
            if value_size >= 0x80:
                value_size, position = value_size & 0x7F | data[position] << 7, position + 1
            if not value_size & 1:
                position += value_size >> 1
            elif value_size != NULL:
                return None
            # No varint goes on behind its second byte, and no headers are there: this is all of the record.
            if (
                number != offset_delta << 1
                or data[position]
                or position + 1 != end
                or size & 1
                or (size | timestamp | number | key_size | value_size) >= 1 << 14
            ):
                return None
            timestamp = (timestamp >> 1) ^ -(timestamp & 1)
            if timestamp > largest:
                largest = timestamp
            if timestamp < least:
                least = timestamp
            position = end
    except IndexError:
        return None
    return (least, largest) if records_count > 0 and position == len(data) else None
