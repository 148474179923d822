#!/usr/bin/env python3
"""Reads a folder's TensorBoard file without TensorBoard: tensorboard_records.py FOLDER METRICS.jsonl. Every record's length and
payload have their masked CRC-32C; each training line of the metrics file is there with the same loss (rounded to a float: 1e-6)."""
import json
import pathlib
import struct
import sys

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        assert masked_crc(data[at : at + 8]) == length_crc, f"CRC of the length at byte {at}"
        payload = data[at + 12 : at + 12 + length]
        assert masked_crc(payload) == struct.unpack_from("<I", data, at + 12 + length)[0], f"CRC of the record at byte {at}"
        yield payload
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """(number, value) of each field of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size, at = (8, at) if kind == 1 else (4, at) if kind == 5 else varint(data, at)
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def main():
    (path,) = pathlib.Path(sys.argv[1]).glob("events.out.tfevents.*")
    all_records = list(records(path.read_bytes()))
    assert (3, b"brain.Event:2") in fields(all_records[0]), "the first record is not the file's version"
    losses = {}
    for record in all_records[1:]:
        event = dict(fields(record))
        for number, value in fields(event[5]):
            scalar = dict(fields(value))
            if number == 1 and scalar[1] == b"lm loss":
                losses[event[2]] = struct.unpack("<f", scalar[2])[0]
    with open(sys.argv[2], encoding="utf-8") as lines:
        wanted = [json.loads(line) for line in lines]
    wanted = {r["iteration"]: r["lm loss"] for r in wanted if "split" not in r}
    assert losses.keys() == wanted.keys(), f"losses at {sorted(losses)}, wanted at {sorted(wanted)}"
    for iteration, loss in losses.items():
        assert abs(loss - wanted[iteration]) < 1e-6, f"iteration {iteration}: {loss}, in the metrics file {wanted[iteration]}"
    print(f"      {len(all_records)} records, {len(losses)} losses")


main()
