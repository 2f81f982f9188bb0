"""Generated from shm/option_table.go by go generate ./shm; do not edit."""

# fmt: off
# numbers by keyword: member of struct stoc_options, range, what an error says that it takes
NUMBERS: dict[str, tuple[str, int, int, str]] = {
    "samples": ("samples", 1, 1099511627776, "in 1..1099511627776; give the samples of the dataset"),
    "size": ("limit_bytes", 1, 9223372036854775807, "in 1..9223372036854775807; leave it out for room for every sample; variable needs a size"),
    "slots": ("slots", 1, 4294967294, "in 1..4294967294; leave it out for as many as size holds"),
    "sample_bytes": ("sample_bytes", 1, 4294967295, "in 1..4294967295; leave it out for the bytes of the fields; with variable 4 GiB - 1"),
    "slot_bytes": ("slot_bytes", 64, 2097152, "in 64..2097152; leave it out for a size that follows from size and samples"),
    "clients": ("client_records", 1, 4095, "in 1..4095; leave it out for 1024"),
}
