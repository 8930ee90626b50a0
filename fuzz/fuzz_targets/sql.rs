//! An SQL92 expression is read and evaluated.
#![no_main]

#[path = "../../tests/fuzz/bytes.rs"]
mod bytes;
#[path = "../../tests/fuzz/sql.rs"]
mod sql;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sql::run(bytes));
