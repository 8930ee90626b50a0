//! A sequence of calls, compared with a model in memory.
#![no_main]

#[path = "../../tests/fuzz/bytes.rs"]
mod bytes;
#[path = "../../tests/fuzz/operations.rs"]
mod operations;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| operations::run(bytes));
