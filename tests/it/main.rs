//! Behaviour through the public API, a module a theme.
#![allow(missing_docs)]

mod browse;
mod close;
mod driven;
mod durability;
mod filters;
mod groups;
mod hand_over;
mod hooks;
mod lifecycle;
mod limits;
mod look_up;
mod offsets;
mod placement;
mod producer;
mod pull;
mod push;
mod recovery;
mod seek;
mod sql;
mod start;
mod stuck;
mod support;
mod topics;
mod wake_up;
