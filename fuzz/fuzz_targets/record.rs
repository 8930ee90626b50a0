//! Bytes as a record, as properties, as a topic's event.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rocklet::fuzzing::decode(bytes));
