//! A directory with damaged files is opened.
#![no_main]

#[path = "../../tests/fuzz/bytes.rs"]
mod bytes;
#[path = "../../tests/fuzz/recovery.rs"]
mod recovery;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| recovery::run(bytes));
