//! Behaviour through the public API, a module a theme.
#![allow(missing_docs)]

mod push;
